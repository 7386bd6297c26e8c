#!/bin/bash
# SPDX-License-Identifier: MIT
# The first process of a container: puts its mounts together, goes into them, starts the session and
# reaps what nobody else does. Called by desktop_app.py in new pid, mount, ipc, uts and net namespaces.
#	container.sh KIT DIR UID GID PROGRAM
set -euo pipefail
kit=$1 dir=$2 uid=$3 gid=$4 program=$5
root=$dir/root
if [ "${6:-}" != inside ]; then
	mount --make-rprivate /
	mount --bind / "$root" # without what is mounted below it
	mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
	mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
	mount -t tmpfs -o mode=1777,nosuid,nodev tmp "$root/tmp"
	mount -t tmpfs -o mode=755,nosuid,nodev run "$root/run"
	mount -t tmpfs -o mode=755,nosuid dev "$root/dev"
	for node in null zero full random urandom tty; do
		: >"$root/dev/$node"
		mount --bind "/dev/$node" "$root/dev/$node"
	done
	mkdir "$root"/dev/{pts,shm} "$root/tmp/.old"
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
	mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
	ln -s pts/ptmx "$root/dev/ptmx"
	ln -s /proc/self/fd "$root/dev/fd"
	mkdir -m 1777 "$root/tmp/.X11-unix" "$root/tmp/.ICE-unix"
	mkdir -p "$root/run/kit" "$root/run/user/$uid"
	chown "$uid:$gid" "$root/run/user/$uid"
	chmod 700 "$root/run/user/$uid"
	mount --bind "$kit" "$root/run/kit"
	mount --bind "$dir/home" "$root/home"
	# copies (ckpt branch) share what is not their own: of that nothing may be writable
	mount -o remount,bind,ro "$root"
	mount -o remount,bind,ro "$root/run/kit"
	cd "$root"
	# not chroot: there the kernel refuses user namespaces, and every sandbox needs one
	pivot_root . tmp/.old
	cd /
	umount -l /tmp/.old
	rmdir /tmp/.old
	exec setsid /bin/bash /run/kit/container.sh "$@" inside </dev/null >/run/log 2>&1
fi
hostname desktop
ip link set lo up
setsid setpriv --reuid "$uid" --regid "$gid" --clear-groups --inh-caps=-all \
	env -i HOME=/home USER=desk SHELL=/bin/bash PATH=/usr/bin:/bin LANG=C.UTF-8 DISPLAY=:7 \
	XDG_RUNTIME_DIR="/run/user/$uid" /bin/bash /run/kit/session.sh "$program" &
set +e
while :; do wait -n || sleep 1; done
