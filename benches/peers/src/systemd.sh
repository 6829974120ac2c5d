# Becomes the systemd of a user without rights, for one case: run as root by PID 1 of a pid and mount namespace of its own.
# $1: a cgroup (v2) of this case, which exists.
set -eu
user=65534
mkdir "$1/session" "$1/manager"
chown $user "$1/cgroup.procs" "$1/manager"
(cd "$1/manager" && chown $user cgroup.procs cgroup.subtree_control cgroup.threads)
# In a hierarchy of its name it would leave cgroups that nobody removes.
for at in $(awk '/name=systemd/ { print $2 }' /proc/mounts); do umount "$at"; done
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user/$user
chown $user /run/user/$user
chmod 700 /run/user/$user
# Who asks for a scope must stand where that user may take processes from.
echo $PPID > "$1/session/cgroup.procs"
echo 0 > "$1/manager/cgroup.procs"
export XDG_RUNTIME_DIR=/run/user/$user HOME=/run/user/$user
exec setpriv --reuid=$user --regid=$user --clear-groups /lib/systemd/systemd --user
