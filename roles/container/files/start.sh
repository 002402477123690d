#!/bin/sh
# Runs the training container's sshd in the foreground, or the command that it is given instead of that. Nothing in
# this file depends on the inventory.
set -eu

rdm=/etc/rdm/ssh

# The container may have been restarted below a job, which then waits for its agent here. Whatever becomes of that, the
# container goes on.
revive() {
    if command -v rdm-trainer > /dev/null; then
        rdm-trainer job revive < /dev/null &
    fi
}

# The engine has written a new /etc/hosts. An image that lets nobody but another user write it gets the names later.
[ ! -r "$rdm/hosts" ] || sh "$rdm/hosts" || :

if [ $# -gt 0 ]; then
    revive
    exec "$@"
fi

sshd=$(PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v sshd) || {
    echo "this image has no sshd: install openssh-server in it, or set container_sshd: false" >&2
    exit 78
}

# The ssh client reads our configuration in the place of the image's own, which ours includes. It is a link into a
# mounted directory, so that it follows what is written there later. ssh takes this one file whoever owns it.
if [ "$(readlink /etc/ssh/ssh_config || :)" != "$rdm/config" ]; then
    mkdir -p /etc/ssh
    if [ -e /etc/ssh/ssh_config ]; then
        mv /etc/ssh/ssh_config /etc/ssh/ssh_config.image
    fi
    ln -sfn "$rdm/config" /etc/ssh/ssh_config
fi

# Where the engine remaps users and the container is left out, the image's files are a remapped user's. ssh takes an
# included file, and sshd its directory, from root alone.
mkdir -p /run/sshd
chown -R 0:0 /etc/ssh /run/sshd

# sshd starts sessions with an environment of its own. Give them the container's, MY_IP among it, as far as
# sshd_config can express it.
session_environment() {
    for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
        case $name in
            HOME | HOSTNAME | LOGNAME | OLDPWD | PWD | SHELL | SHLVL | TERM | USER | _) continue ;;
        esac
        # Only the name is part of these commands, and it is letters, digits and _. It may also be from the second line
        # of a value.
        eval "[ -n \"\${$name+set}\" ]" || continue
        eval "value=\$$name"
        case $value in
            *\"* | *\\* | *'
'*) continue ;;
        esac
        printf ' "%s=%s"' "$name" "$value"
    done
}

# The environment may hold secrets, and not all users of the container have to see them. The umask is that of the
# subshell only, since sessions would inherit sshd's.
rm -rf /run/rdm
(
    umask 077
    mkdir /run/rdm
    {
        cat "$rdm/sshd_config"
        printf 'SetEnv%s\n' "$(session_environment)"
    } > /run/rdm/sshd_config
)

revive
exec "$sshd" -D -e -f /run/rdm/sshd_config
