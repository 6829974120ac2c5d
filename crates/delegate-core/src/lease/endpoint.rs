//! Which pool a child gets ([`choose`]), and whether two addresses are one endpoint. Pure. Asked once per
//! batch, after its route is known.

use delegate_protocol::{ApiKey, Routing};

/// Whether two addresses are one endpoint: scheme and host in any case, the usual port said or not, a slash
/// at the end or not.
#[must_use]
pub fn same_endpoint(one: &str, other: &str) -> bool {
    normal(one) == normal(other)
}

fn normal(address: &str) -> String {
    let address = address.trim();
    let (scheme, rest) = address.split_once("://").unwrap_or(("https", address));
    let scheme = scheme.to_ascii_lowercase();
    let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = host.to_ascii_lowercase();
    let usual = if scheme == "http" { ":80" } else { ":443" };
    let host = host.strip_suffix(usual).unwrap_or(&host);
    format!("{scheme}://{host}{}", path.trim_end_matches('/'))
}

/// Prefix of pools for endpoints that were named by address.
pub const CUSTOM: &str = "custom";

/// What is known of a pool when one is chosen.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Its name: a provider, or `custom:NAME`.
    pub name: &'a str,
    /// Its endpoint.
    pub base_url: Option<&'a str>,
    /// Whether it has a key for the child's endpoint.
    pub serves: bool,
    /// Whether the parent's key is one of its own.
    pub has_parents_key: bool,
}

/// What is known of the parent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parents<'a> {
    /// Its provider.
    pub provider: Option<&'a str>,
    /// Its pool.
    pub pool: Option<&'a str>,
    /// Its key.
    pub key: Option<&'a ApiKey>,
    /// There is no agent that delegates: the program itself is the root, and every pool is its own.
    pub is_program: bool,
}

/// The pool of a child with this route: its name, or none (the child keeps the key of its route).
///
/// - No provider: the parent's.
/// - A custom endpoint: the pool of that endpoint, by name, then by address; the parent's where that is the
///   same one. An endpoint that nobody registered has none.
/// - The parent's provider: the parent's pool where it serves the endpoint; a parent without a pool has a
///   key of its own that may be meant for something else, so its children get none.
/// - Another provider: that provider's pool, where it has a key for the endpoint.
#[must_use]
pub fn choose<'a>(route: &Routing, parents: Parents<'a>, pools: &[Known<'a>]) -> Option<&'a str> {
    let serving = |name: &str| pools.iter().find(|pool| pool.name == name && pool.serves);
    let of_parent = || parents.pool.and_then(serving).map(|pool| pool.name);
    let Some(provider) = route.provider.as_deref() else { return of_parent() };
    let named = route.requested_provider.as_deref().unwrap_or(provider);
    let is_custom = provider == CUSTOM || provider.starts_with("custom:");
    if is_custom || named.starts_with("custom:") {
        let by_name = pools.iter().find(|pool| {
            named != CUSTOM
                && pool.name.starts_with("custom:")
                && bare_of(pool.name) == bare_of(named)
        });
        let by_address = || {
            let url = route.base_url.as_deref()?;
            pools.iter().find(|pool| pool.base_url.is_some_and(|own| same_endpoint(own, url)))
        };
        let found = by_name.or_else(by_address)?;
        if found.has_parents_key && parents.pool.is_some() {
            return of_parent().or_else(|| found.serves.then_some(found.name));
        }
        return found.serves.then_some(found.name);
    }
    if parents.provider == Some(provider) && !parents.is_program {
        return of_parent();
    }
    let of_name = pools.iter().find(|pool| bare_of(pool.name) == provider && pool.serves);
    serving(provider).or(of_name).map(|pool| pool.name)
}

fn bare_of(name: &str) -> &str {
    name.strip_prefix("custom:").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(provider: Option<&str>, base_url: Option<&str>) -> Routing {
        Routing {
            provider: provider.map(str::to_owned),
            base_url: base_url.map(str::to_owned),
            ..Routing::default()
        }
    }

    const A: &str = "https://a.example/v1";
    const B: &str = "https://b.example/v1";

    fn pool(name: &'static str) -> Known<'static> {
        Known { name, base_url: None, serves: true, has_parents_key: false }
    }

    fn custom(name: &'static str, url: &'static str) -> Known<'static> {
        Known { base_url: Some(url), ..pool(name) }
    }

    const PARENT: Parents<'static> =
        Parents { provider: Some("a"), pool: Some("a"), key: None, is_program: false };

    #[test]
    fn addresses_of_one_endpoint_are_equal() {
        for same in ["https://A.Example/v1/", "HTTPS://a.example:443/v1", " https://a.example/v1 "]
        {
            assert!(same_endpoint(A, same), "{same}");
        }
        for other in [B, "http://a.example/v1", "https://a.example/V1", "https://a.example:8443/v1"]
        {
            assert!(!same_endpoint(A, other), "{other}");
        }
    }

    #[test]
    fn the_rules_for_named_providers() {
        let pools = [pool("a"), pool("b"), Known { serves: false, ..pool("empty") }];
        let of = |provider| choose(&route(provider, None), PARENT, &pools);
        assert_eq!((of(None), of(Some("a")), of(Some("b"))), (Some("a"), Some("a"), Some("b")));
        assert_eq!((of(Some("empty")), of(Some("unknown"))), (None, None));
        // #71424: a parent with a fixed key has no pool to share, though there is one of that name.
        let fixed = Parents { pool: None, ..PARENT };
        assert_eq!(choose(&route(Some("a"), None), fixed, &pools), None);
        assert_eq!(choose(&route(None, None), fixed, &pools), None);
        // Its pool does not serve the child's endpoint.
        let elsewhere = [Known { serves: false, ..pool("a") }];
        assert_eq!(choose(&route(Some("a"), Some(B)), PARENT, &elsewhere), None);
        let program = Parents { is_program: true, ..Parents::default() };
        assert_eq!(choose(&route(Some("a"), None), program, &pools), Some("a"));
    }

    #[test]
    fn the_rules_for_custom_endpoints() {
        let pools = [custom("custom:one", A), custom("custom:two", B), pool("custom")];
        let parents = Parents { provider: Some("custom"), pool: Some("custom:one"), ..PARENT };
        let at = |url| choose(&route(Some("custom"), Some(url)), parents, &pools);
        assert_eq!(
            (at(A), at(B), at("https://c.example")),
            (Some("custom:one"), Some("custom:two"), None)
        );
        let named = Routing {
            requested_provider: Some("custom:two".to_owned()),
            ..route(Some("custom"), Some(A))
        };
        assert_eq!(choose(&named, parents, &pools), Some("custom:two"), "name first, then address");
        let bare = Routing { requested_provider: Some("custom:gone".to_owned()), ..named };
        assert_eq!(choose(&bare, parents, &pools), Some("custom:one"));
        // The same key as the parent's: the parent's pool.
        let twice =
            [custom("custom:one", A), Known { has_parents_key: true, ..custom("custom:two", B) }];
        assert_eq!(choose(&route(Some("custom"), Some(B)), parents, &twice), Some("custom:one"));
    }
}
