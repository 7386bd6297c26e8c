# SPDX-License-Identifier: MIT
"""What is below a directory, file by file, seen from outside."""
import hashlib
import os
import stat


def attributes(path):
    """Extended ones, but for an overlay's own."""
    return {name: os.getxattr(path, name, follow_symlinks=False)
            for name in os.listxattr(path, follow_symlinks=False) if not name.startswith("trusted.overlay.")}


def content(path, mode):
    """What is in it."""
    if stat.S_ISLNK(mode):
        return os.readlink(path)
    if not stat.S_ISREG(mode):
        return ""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def below(directory, numbers=()):
    """{name: what it is}; inode numbers of those of which they are to be as they were."""
    found, inodes = {}, {}
    for where, directories, names in os.walk(directory):
        for name in sorted(directories + names):
            path = os.path.join(where, name)
            info = os.lstat(path)
            kind = stat.S_ISDIR(info.st_mode)
            first = inodes.setdefault(info.st_ino, path)
            found[os.path.relpath(path, directory)] = (
                oct(info.st_mode), info.st_uid, info.st_gid, 0 if kind else info.st_size, info.st_mtime_ns,
                0 if kind else info.st_nlink, os.path.relpath(first, directory), info.st_rdev,
                info.st_ino if name in numbers else 0, attributes(path), content(path, info.st_mode))
    return found


def differences(before, after):
    """["name: as it was -> as it is"]"""
    return [f"{name}: {before.get(name)} -> {after.get(name)}"
            for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
