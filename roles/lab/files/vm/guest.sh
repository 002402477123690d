#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs in a machine's root file system while it is built: installs its kernel and initrd, and makes it a lab node.
# Arguments: the machine's release, the kernel's.
set -eu
own=$1
kernels=$2

# --- the kernel: the distribution's, without drivers for hardware that no machine has ---

other=/etc/apt/sources.list.d/kernel.list
if [ "$kernels" != "$own" ]; then
  sed -n "s/ $own / $kernels /p" /etc/apt/sources.list >"$other"
  apt-get update -qq
fi
package=$(apt-cache depends --option APT::Default-Release="$kernels" linux-image-amd64 |
  sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
work=$(mktemp -d)
cd "$work"
chmod 755 "$work"
# Newer kernels consist of several packages.
parts=$(apt-cache depends "$package" | sed -n 's/^ *Depends: \(linux-\(base\|binary\|modules\)-[0-9].*\)$/\1/p')
# shellcheck disable=SC2086  # words
apt-get download -qq "$package" $parts
rm -f "$other"
for part in ./*.deb; do
  dpkg --extract "$part" kernel
done
release=$(ls kernel/usr/lib/modules)
modules=kernel/usr/lib/modules/$release/kernel
for unused in drivers/ata drivers/gpu drivers/hid drivers/i2c/busses drivers/iio drivers/input drivers/media drivers/mfd \
  drivers/net/usb drivers/net/wireless drivers/scsi drivers/staging drivers/usb net/bluetooth net/mac80211 net/wireless \
  sound; do
  rm -rf "${modules:?}/$unused"
done
find "$modules/drivers/net/ethernet" -mindepth 1 -maxdepth 1 -not -name intel -not -name mellanox -exec rm -rf {} +
find "$modules/fs" -mindepth 1 -maxdepth 1 -type d -not -name 9p -not -name autofs -not -name ext4 -not -name fuse \
  -not -name jbd2 -not -name netfs -not -name overlayfs -exec rm -rf {} +
# udev would load these for a processor with their instructions. Translated, their self-tests take minutes.
find "$modules/arch/x86" -name '*.ko.xz' -not -name 'crc32c-intel*' -delete
# Unpack them once, instead of at each boot with translated code.
find "$modules" -name '*.ko.xz' -exec xz --decompress {} +
mkdir -p /usr/lib/modules
cp -r "kernel/usr/lib/modules/$release" /usr/lib/modules/
# shellcheck disable=SC2046  # words
set -- $(find kernel -name 'vmlinuz*' -type f)
if [ $# != 1 ]; then
  echo "$package has $# kernels (vmlinuz), and a machine boots one${1:+: $*}" >&2
  exit 1
fi
cp "$1" /boot/vmlinuz
depmod "$release"

# --- the initrd: busybox and the modules of the disk ---

mkdir -p initrd/bin initrd/modules
cp /usr/bin/busybox initrd/bin/busybox
cp /tmp/rdm-lab/init initrd/init
chmod 755 initrd/init
number=100
for module in virtio_pci virtio_blk crc32c_generic ext4; do
  modprobe --set-version "$release" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' >modules
while read -r path; do
  cp "$path" "initrd/modules/$number.ko"
  number=$((number + 1))
done <modules
(cd initrd && find . | cpio --quiet --create --format=newc --owner=0:0) | gzip -1 >/boot/initrd
cd /
rm -rf "$work"

# --- a node of the lab ---

# The image is the same for all nodes. What differs is in the two shared directories.
mkdir -p /srv/rdm/images /srv/rdm/lab
cat >/etc/fstab <<'FSTAB'
rdm-images /srv/rdm/images 9p trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro,nofail 0 0
rdm-keys /srv/rdm/lab 9p trans=virtio,version=9p2000.L,ro,nofail 0 0
FSTAB
echo 9pnet_virtio >/etc/modules-load.d/rdm-lab.conf

cat >/etc/systemd/system/rdm-lab-keys.service <<'UNIT'
[Unit]
Description=Host key and authorized keys of this lab node
RequiresMountsFor=/srv/rdm/lab
Before=ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/rdm-lab keys

[Install]
RequiredBy=ssh.service
UNIT
cat >/etc/systemd/system/rdm-lab-report.service <<'UNIT'
[Unit]
Description=Answers the lab whether this node is ready

[Service]
ExecStart=/usr/local/sbin/rdm-lab report /dev/virtio-ports/rdm.lab
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
UNIT
# Physical functions, but not virtual ones, get the names of the fabric interfaces on all lab nodes. Each card is the
# only device on its bus, and the root ports' buses are numbered in order.
for rail in 0 1 2 3 4 5 6 7; do
  cat >"/etc/systemd/network/10-fabric-$rail.link" <<LINK
[Match]
Driver=igb
Path=pci-0000:0$((rail + 1)):00.0

[Link]
Name=ib$rail
LINK
done
# A single card, at any other PCI address.
cat >/etc/systemd/network/11-fabric.link <<'LINK'
[Match]
Driver=igb

[Link]
Name=ib0
LINK
cat >/etc/systemd/network/10-fabric.network <<'NETWORK'
[Match]
Driver=igb

[Network]
LinkLocalAddressing=no
NETWORK
cat >/etc/systemd/network/20-management.network <<'NETWORK'
[Match]
Driver=virtio_net

[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
LinkLocalAddressing=no
NETWORK
echo 'nameserver 10.0.2.3' >/etc/resolv.conf
echo 'localhost' >/etc/hostname
printf '127.0.0.1 localhost\n::1 localhost\n' >/etc/hosts
# The machine gets its own ID at boot. With one in the image, systemd does not run its first-boot steps.
systemd-machine-id-setup

systemctl enable --quiet docker.service rdm-lab-keys.service rdm-lab-report.service ssh.service systemd-networkd.service
# Show errors on the console, and keep the journal off the disk.
rm -rf /var/log/journal
mkdir -p /etc/systemd/journald.conf.d
cat >/etc/systemd/journald.conf.d/rdm-lab.conf <<'JOURNAL'
[Journal]
Storage=volatile
ForwardToConsole=yes
MaxLevelConsole=err
JOURNAL

# With translated code on a busy machine, containerd needs this long at its first start.
mkdir -p /etc/systemd/system.conf.d
cat >/etc/systemd/system.conf.d/rdm-lab.conf <<'MANAGER'
[Manager]
DefaultTimeoutStartSec=600
MANAGER

# By default udev handles all existing devices, terminals first. Only these need a driver or a name.
mkdir -p /etc/systemd/system/systemd-udev-trigger.service.d
cat >/etc/systemd/system/systemd-udev-trigger.service.d/rdm-lab.conf <<'TRIGGER'
[Service]
ExecStart=
ExecStart=udevadm trigger --action=add --subsystem-match=block --subsystem-match=misc --subsystem-match=net \
  --subsystem-match=pci --subsystem-match=virtio --subsystem-match=virtio-ports
TRIGGER

# Disable plugins of containerd that the engine does not use.
cat >/etc/containerd/config.toml <<'CONTAINERD'
version = 2
disabled_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.internal.v1.tracing",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]
CONTAINERD

# Each of these takes seconds with translated code, and a lab does not need it.
systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dev-hugepages.mount dpkg-db-backup.timer \
  e2scrub_all.timer e2scrub_reap.service fstrim.timer getty-static.service getty@tty1.service modprobe@.service \
  serial-getty@ttyS0.service sys-fs-fuse-connections.mount sys-kernel-config.mount sys-kernel-debug.mount \
  sys-kernel-tracing.mount systemd-binfmt.service systemd-network-generator.service \
  systemd-networkd-persistent-storage.service systemd-networkd-wait-online.service systemd-pstore.service \
  systemd-random-seed.service systemd-remount-fs.service systemd-udev-load-credentials.service
# This generator is for other hypervisors, and would log an error at every boot.
mkdir -p /etc/systemd/system-generators
ln -s /dev/null /etc/systemd/system-generators/systemd-ssh-generator
# If it is missing, every login logs an error.
touch /etc/default/locale
# Keep systemd from updating caches for the new /usr at boot.
journalctl --update-catalog
ldconfig
touch /etc/.updated /var/.updated
