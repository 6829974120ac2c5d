# The same as bare.c for dash: it looks every tenth of a second whether a group is still there.
groups=
while read -r operation number; do
    [ "$operation" = a ] && [ "$number" -gt 1 ] && groups="$groups $number"
done
for group in $groups; do kill -s TERM -- "-$group" 2>/dev/null; done
tenths=30
while [ "$tenths" -gt 0 ]; do
    left=
    for group in $groups; do kill -s 0 -- "-$group" 2>/dev/null && left="$left $group"; done
    groups=$left
    [ -n "$groups" ] || exit 0
    sleep 0.1
    tenths=$((tenths - 1))
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
