#!/bin/sh
# Gives this container the names of all nodes, in a block at the end of /etc/hosts. The engine has mounted that file, so
# it is written in place. The names are those for which ssh knows a MY_IP. A space stands between address and name,
# since an engine that takes the container off a network removes lines with a tab and its name.
set -eu

hosts=${1:-/etc/hosts}
config=${2:-/etc/rdm/ssh/config}
begin='# BEGIN rdm-provision nodes'
end='# END rdm-provision nodes'

text=$(
    sed "/^$begin\$/,/^$end\$/d" "$hosts"
    echo "$begin"
    sed -n -e '/^Match originalhost /{s///;h;}' -e '/^Host /{s///;h;}' \
        -e '/^  HostName /{s///;G;s/\n/ /;p;}' "$config"
    echo "$end"
)
[ "$text" = "$(cat "$hosts")" ] || printf '%s\n' "$text" > "$hosts"
