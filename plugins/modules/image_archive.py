#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""rdm.provision.image_archive: the images of an archive are in the Docker Engine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_archive
short_description: Load the images of an archive into Docker Engine, only when they are not there
version_added: 0.1.0
description:
  - Makes sure that the images of an archive (what C(docker save) writes, or an OCI image layout) are in
    the engine under their tags, and that they are the right ones.
  - An image is compared by the digest of its configuration and by its layers, so that nothing is loaded
    twice, whichever image store the engine has.
  - Archives may be plain tars, or compressed with gzip or zstd. They are streamed, so memory does not grow
    with the image.
  - A tag that points to another image is moved; the other image stays, without that tag.
options:
  path:
    description:
      - The archive.
      - On the controller (O(remote_src=false)) a relative path is relative to the inventory's directory.
    type: path
    required: true
  remote_src:
    description:
      - Whether the archive is on the node, or on a file system that the node mounts.
      - Otherwise it is on the controller, and is copied to the node for as long as it takes, only when
        the node needs it.
      - The default is not that of M(ansible.builtin.copy). A training image has tens of gigabytes, which
        lie where all nodes can read them. They are copied over ssh to every node only on request.
    type: bool
    default: true
  sha256:
    description:
      - What the digest of the archive must be, in hexadecimal. It is verified before anything is loaded.
      - Empty means that any will do.
    type: str
    default: ""
  name:
    description:
      - The image that must be in the archive and in the engine, such as V(repository:tag).
      - An archive with one image that has no name is given this one.
      - Empty means all images of the archive, under the names that they have in it.
    type: str
    default: ""
  state:
    description:
      - V(present) loads what is missing.
      - V(absent) removes the tags that point to the images of the archive, and with its last tag the image.
      - V(inspected) reads only and never fails. It reports whether the archive is sound, and whether it is
        needed here.
    type: str
    choices: [present, absent, inspected]
    default: present
  cache_dir:
    description:
      - Where it is remembered what is in an archive that has to be read whole for that, so that this is
        done only once.
      - Empty means C(/var/cache/rdm) for root, and C(~/.cache/rdm) for others.
    type: str
    default: ""
  index:
    description:
      - What is in the archive. Set by the action plugin for an archive on the controller, and for one that
        another node has read.
    type: dict
  read:
    description:
      - With O(state=inspected), whether to read an archive whole if that is necessary. Otherwise RV(unread)
        is returned for it. Set by the action plugin.
    type: bool
    default: true
  file:
    description:
      - The RV(unread) of the archive whose O(index) another node has made. If the archive here is another
        file, it is read. Set by the action plugin.
    type: str
    default: ""
  copy:
    description:
      - Where the archive was copied to. Set by the action plugin for an archive on the controller.
      - Required if O(remove_copy=true).
    type: path
  remove_copy:
    description: Whether to remove O(copy) once the engine has its images. Set by the action plugin.
    type: bool
    default: false
  brought:
    description:
      - What M(rdm.provision.image_distribution) says of this archive on this node, with its C(index), and
        C(keep) if another image is loaded from it afterwards.
    type: dict
attributes:
  check_mode:
    support: full
    description: Reports what would change, and changes nothing.
  diff_mode:
    support: full
    description: Shows the image behind each tag, before and after.
  idempotent:
    support: full
    description: A second run changes nothing.
requirements:
  - Docker Engine 20.10 or newer
  - The program zstd, for archives compressed with it, where the archive is.
author: The rdm-provision developers
"""

EXAMPLES = r"""
- name: Load the training image from a file system that every node mounts
  rdm.provision.image_archive:
    path: /shared/images/training-2026.11.tar.zst
    name: registry.example.com/training:2026.11
    sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

- name: Load the training image from an archive on the controller
  rdm.provision.image_archive:
    path: images/training.tar.gz
    name: training:1
    remote_src: false

- name: Inspect the archive, and whether this node needs it
  rdm.provision.image_archive:
    path: /shared/images/training-2026.11.tar.zst
    name: registry.example.com/training:2026.11
    state: inspected
  register: inspection

- name: Remove the image
  rdm.provision.image_archive:
    path: /shared/images/training-2026.11.tar.zst
    state: absent
"""

RETURN = r"""
images:
  description: The requested images of the archive.
  returned: when the archive could be read
  type: list
  elements: dict
  contains:
    digest: {description: The digest of the image's configuration., type: str}
    tags: {description: "The names that it has, or would have.", type: list, elements: str}
actions:
  description: What was done, or would be done in check mode.
  returned: always
  type: list
  elements: str
  sample: ["load /shared/images/training-2026.11.tar.zst"]
copy_needed:
  description: The node needs the archive, which is on the controller.
  returned: always
  type: bool
path: {description: The archive., returned: for O(state=inspected), type: str}
problem:
  description: Why the archive cannot be used, in one sentence; empty when it can.
  returned: for O(state=inspected)
  type: str
  sample: "/shared/images/training-2026.11.tar.zst is truncated (it ends in the middle)"
hint: {description: What would work instead., returned: for O(state=inspected), type: str}
index:
  description: What is in the archive.
  returned: for O(file) without O(index), if the archive could be read
  type: dict
unread:
  description: What identifies the file on all nodes that read it from a shared file system.
  returned: for O(read=false) and an archive that must be read whole
  type: str
needed:
  description: V(present) would change something. Never for an archive with a problem.
  returned: for O(state=inspected)
  type: bool
load:
  description: V(present) would load the archive. Otherwise at most a tag is missing.
  returned: for O(state=inspected)
  type: bool
unpacked:
  description: Bytes of the uncompressed archive, if it needs to be loaded; 0 otherwise.
  returned: for O(state=inspected)
  type: int
size:
  description: Bytes of the archive, if it needs to be loaded.
  returned: for O(state=inspected)
  type: int
present_members:
  description: The members of the archive that the engine would not open, since it has what they hold.
  returned: for O(state=inspected)
  type: list
new_bytes:
  description: Bytes of the uncompressed archive without the layers that the engine would not open.
  returned: for O(state=inspected)
  type: int
storage:
  description:
    - Of an archive on the node that is to be loaded, the type of its file system (C(file_system)) and the
      digests of all images in it (C(images)).
    - Of O(cache_dir), the type (C(cache_file_system)) and the free bytes (C(cache_free)) of its file system.
    - Empty if there is no such archive.
  returned: for O(state=inspected)
  type: dict
new_layers:
  description: The layers, by digest, that the engine does not have, each with its bytes in the archive.
  returned: for O(state=inspected)
  type: dict
"""

import contextlib
import os
import re
from typing import Any
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.host import disk, file_system_type, read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import size_text
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import image_dir, image_store
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_cache import (
    ArchiveUnread,
    cached_index,
    default_cache_dir,
    file_identity,
    forget_index,
    is_plain,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    ArchiveIndex,
    ArchiveMissing,
    Image,
    inspection,
    room_to_load,
    same_image,
    wanted_images,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_load import (
    ArchiveChanged,
    load_chunks,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.engine_layers import (
    inspected,
    lacking_layers,
    present_members,
    require_readable,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import remove_pieces

ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "remote_src": {"type": "bool", "default": True},
    "sha256": {"type": "str", "default": ""},
    "name": {"type": "str", "default": ""},
    "state": {"type": "str", "choices": ["present", "absent", "inspected"], "default": "present"},
    "cache_dir": {"type": "str", "default": ""},
    "index": {"type": "dict"},
    "read": {"type": "bool", "default": True},
    "file": {"type": "str", "default": ""},
    "copy": {"type": "path"},
    "remove_copy": {"type": "bool", "default": False},
    "brought": {"type": "dict"},
}

NO_IMAGE = "absent"
# The engine's message for each loaded image.
_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")
PUT_IT_THERE = "put it there, or set remote_src: false to take it from the controller"


class Images:
    """The images of one archive, compared with the engine's.

    Raises:
        NodeError: the archive is not usable.
        DockerProblem: the engine does not answer or refuses.
    """

    def __init__(self, params: dict[str, Any], index: ArchiveIndex, api: DockerAPI, check_mode: bool) -> None:
        self.index = index
        self.api = api
        self.check_mode = check_mode
        self.path: str = params["path"]
        self.copy: str | None = params["copy"]
        self.cache_dir: str = params["cache_dir"] or default_cache_dir()
        self.on_node: bool = params["remote_src"]
        self.wanted = wanted_images(self.index, self.path, params["name"], api.version()["Arch"])
        self.before = {name: self._id(name) for name in self._names()}
        self.after = dict(self.before)
        self.actions: list[str] = []
        self.copy_needed = False
        self.loaded: list[str] = []
        self.tags: dict[str, str] = {}

    def inspect(self) -> dict[str, Any]:
        """Return what `present` would change."""
        wrong, missing = self._lacking()
        require_readable(self.api, self.path, missing)
        return {
            **inspection(self.path),
            "needed": bool(wrong or missing),
            "load": bool(missing),
            "unpacked": self.index.unpacked if missing else 0,
            **(self._lacking_layers() if missing else {}),
            "storage": self._storage() if missing and self.on_node else {},
            "images": self._images(),
        }

    def present(self) -> None:
        """Load and tag what is missing."""
        wrong, missing = self._lacking()
        if not wrong and not missing:
            return
        if missing:
            self.actions.append("load {0}".format(self.path))
            require_readable(self.api, self.path, missing)
            self._check_room()
            self.copy_needed = not self.on_node and self.copy is None
            if not self.check_mode and not self.copy_needed:
                self._load()
        if self.check_mode or self.copy_needed:
            for image, tags in self.wanted:
                for name in tags or [image.ids[0]]:
                    self.after[name] = self._find(image) or image.ids[0]
            self.actions.extend("tag {0}".format(tag) for _image, tag in wrong if not missing)
            return
        for image, tag in self._tagged():
            if not self._is(image, tag):
                self._tag(image, tag)
        for image, _tags in self.wanted:
            if self._find(image) is None:
                self._take_back()
                raise NodeError(
                    "the engine accepted {0}, and what it loaded is not image {1}: it was removed".format(
                        self.path, image.ids[0]
                    )
                )
        self.after = {name: self._id(name) for name in self._names()}

    def absent(self) -> None:
        """Remove the tags that point to these images, and images without tags."""
        for image, tags in self.wanted:
            for name in tags or image.ids[:1]:
                if not self._is(image, name):
                    continue
                self.actions.append("remove {0}".format(name))
                self.after[name] = NO_IMAGE
                if not self.check_mode:
                    self.api.delete("/images/{0}".format(quote(name, safe="/:@")))
        if self.on_node and not self.check_mode:
            forget_index(self.path, self.cache_dir)

    def result(self) -> dict[str, Any]:
        """Return the module's result."""
        return {
            "changed": bool(self.actions),
            "actions": self.actions,
            "copy_needed": self.copy_needed,
            "images": self._images(),
            "diff": {"before": self.before, "after": self.after},
        }

    def _images(self) -> list[dict[str, Any]]:
        return [{"digest": image.ids[0], "tags": tags} for image, tags in self.wanted]

    # ---- the engine

    def _lacking(self) -> tuple[list[tuple[Image, str]], list[Image]]:
        """Return the tags that do not point to their image, and the images that are not in the engine."""
        wrong = [(image, tag) for image, tag in self._tagged() if not self._is(image, tag)]
        missing = [image for image, _tags in self.wanted if self._find(image) is None]
        return wrong, missing

    def _new_layers(self) -> dict[str, int]:
        return lacking_layers(self.api, [image for image, _tags in self.wanted])

    def _lacking_layers(self) -> dict[str, Any]:
        new = self._new_layers()
        return {
            "new_layers": new,
            "size": self.index.size,
            "present_members": sorted(self._skippable(new)),
            "new_bytes": self._new_bytes(new),
        }

    def _new_bytes(self, new: dict[str, int]) -> int:
        wanted = [image for image, _tags in self.wanted]
        plain = self.index._replace(compression="plain", images=wanted)
        present = present_members(self.api, plain, new)
        sizes = {path: size for image in wanted for path, size in zip(image.layer_paths, image.layer_sizes)}
        return self.index.unpacked - sum(sizes[path] for path in present)

    def _storage(self) -> dict[str, Any]:
        mounts = read_text("/proc/self/mountinfo")
        return {
            "file_system": file_system_type(os.path.realpath(self.path), mounts),
            "images": sorted(image.ids[0] for image in self.index.images),
            "cache_file_system": file_system_type(os.path.realpath(self.cache_dir), mounts),
            "cache_free": disk(self.cache_dir)["free"],
        }

    def _skippable(self, new: dict[str, int]) -> frozenset[str]:
        # An archive may hold images for other architectures under the same tags.
        index = self.index._replace(images=[image for image, _tags in self.wanted])
        return present_members(self.api, index, new)

    def _names(self) -> list[str]:
        return [name for image, tags in self.wanted for name in tags or image.ids[:1]]

    def _tagged(self) -> list[tuple[Image, str]]:
        return [(image, tag) for image, tags in self.wanted for tag in tags]

    def _id(self, name: str) -> str:
        found = inspected(self.api, name)
        return NO_IMAGE if found is None else str(found["Id"])

    def _is(self, image: Image, name: str) -> bool:
        found = inspected(self.api, name)
        return found is not None and same_image(image, found)

    def _find(self, image: Image) -> str | None:
        """Return the image's ID in the engine, under any of its names."""
        tags = next(tags for other, tags in self.wanted if other is image)
        for name in [*tags, *image.ids]:
            found = inspected(self.api, name)
            if found is not None and same_image(image, found):
                return str(found["Id"])
        return None

    def _tag(self, image: Image, tag: str) -> None:
        image_id = self._find(image)
        if image_id is not None:
            repository, _, word = tag.rpartition(":")
            self.api.post("/images/{0}/tag".format(image_id), repo=repository, tag=word)
            self.actions.append("tag {0}".format(tag))

    def _check_room(self) -> None:
        """Raise NodeError if the image cannot fit into the engine's image directory."""
        info = self.api.get("/info")
        root = image_dir(info)
        if not os.path.isdir(root):
            return
        free = disk(root)["free"]
        archive = {"unpacked": self.index.unpacked, "new_layers": self._new_layers()}
        room = room_to_load([archive], image_store(info) == "classic")
        if free < room:
            raise NodeError(
                "{0} needs {1} for loading, and {2} has {3} free".format(
                    self.path, size_text(room), root, size_text(free)
                ),
                "free some space there",
            )

    def _load(self) -> None:
        source = self.path if self.copy is None else self.copy
        if self.copy is not None:
            self._check_copy(self.copy)
        self.tags = {
            tag: str(image["Id"])
            for image in self.api.get("/images/json")
            for tag in image.get("RepoTags") or []
        }
        # An archive may hold images for other architectures under the same tags.
        index = self.index._replace(images=[image for image, _tags in self.wanted])
        skipped = self._skippable(self._new_layers())
        if skipped:
            try:
                self._send(source, index, skipped)
            except DockerError:
                pass  # a layer was removed meanwhile, so load the whole archive
            else:
                return
        self._send(source, index, frozenset())

    def _send(self, source: str, index: ArchiveIndex, skipped: frozenset[str]) -> None:
        """Load an archive into the engine, without the members that it does not need."""
        try:
            with contextlib.closing(load_chunks(source, index, skipped)) as chunks:
                progress = self.api.post_stream(
                    "/images/load", chunks, {"Content-Type": "application/x-tar"}, quiet=True
                )
                for line in progress:
                    name = _LOADED.match(str(line.get("stream", "")))
                    if name:
                        self.loaded.append(name.group(1))
        except ArchiveChanged as changed:
            self._take_back()
            what = self.path if self.copy is None else "the copy of {0}".format(self.path)
            raise NodeError(
                "{0} has sha256 {1} while it is loaded, not {2}, so none of it was kept".format(
                    what, changed.sha256, self.index.sha256
                ),
                "see who has changed it",
            ) from None
        except DockerError as error:
            if "no space left" in error.message:
                raise NodeError(
                    "{0}, which unpacks to {1}, filled the disk of the engine".format(
                        self.path, size_text(self.index.unpacked)
                    ),
                    "free some space there",
                ) from None
            raise

    def _take_back(self) -> None:
        """Remove wrong images that were loaded, and restore the names that they took."""
        were = {**self.tags, **self.before}
        for name in dict.fromkeys([*self.loaded, *self.before]):
            now, was = self._id(name), were.get(name, NO_IMAGE)
            if now in (was, NO_IMAGE):
                continue
            self.api.delete("/images/{0}".format(quote(name, safe="/:@")), force=True)
            if was != NO_IMAGE and not name.startswith("sha256:"):
                repository, _, word = name.rpartition(":")
                self.api.post("/images/{0}/tag".format(was), repo=repository, tag=word)

    def _check_copy(self, copy: str) -> None:
        try:
            size = os.stat(copy).st_size
        except OSError as error:
            raise NodeError("the copy of {0} cannot be read: {1}".format(self.path, error)) from None
        if size != self.index.size:
            raise NodeError("the copy of {0} has {1} bytes, not {2}".format(self.path, size, self.index.size))


def archive_index(params: dict[str, Any]) -> ArchiveIndex:
    """Return what is in the archive: from the cache, from the node that has read it, or by reading it.

    Raises:
        ArchiveUnread: it must not be read.
        NodeError: as `cached_index`.
    """

    def read(path: str, digest: bool) -> ArchiveIndex:
        if not params["read"]:
            raise ArchiveUnread(path)
        if params["index"] and params["file"] == file_identity(path):
            known = ArchiveIndex.from_json(params["index"])
            # Trust the other node as little as possible. A wrong digest is found when the archive is loaded.
            return index_archive(path)._replace(sha256=known.sha256) if is_plain(path) else known
        return index_archive(path, digest)

    if params["remote_src"]:
        cache_dir = params["cache_dir"] or default_cache_dir()
        return cached_index(params["path"], params["sha256"], cache_dir, params["state"] == "absent", read)
    if not params["index"]:
        raise NodeError("remote_src=false works through Ansible only")
    return ArchiveIndex.from_json(params["index"])


def _for_others(params: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    """Return the index for other nodes, if this one has read the archive for them."""
    return read if params["file"] and not params["index"] else {}


@as_module(ARGUMENT_SPEC, required_if=[["remove_copy", True, ["copy"]]])
def main(module: AnsibleModule) -> dict[str, Any]:
    """Inspect, load or remove the images, and return the module's result."""
    state = module.params["state"]
    nothing: dict[str, Any] = {"actions": [], "copy_needed": False}
    read: dict[str, Any] = {}
    try:
        api = DockerAPI()
        index = archive_index(module.params)
        read["index"] = index.to_json()
        images = Images(module.params, index, api, module.check_mode)
        if state == "inspected":
            return {**images.inspect(), **_for_others(module.params, read)}
        (images.present if state == "present" else images.absent)()
        if module.params["remove_copy"]:  # here, and not by the controller, which may be killed meanwhile
            remove_pieces(module.params["copy"])
        return images.result()
    except ArchiveUnread as unread:
        return {**inspection(module.params["path"]), "unread": unread.file}
    except ArchiveMissing as problem:
        if state == "absent":
            module.warn("{0}, so its images cannot be identified and stay".format(problem))
            return nothing
        found = NodeError(str(problem), PUT_IT_THERE, **nothing)
    except NodeError as problem:
        found = NodeError(str(problem), problem.hint, **nothing)
        read.update(problem.result)
    if state == "inspected":
        return {
            **inspection(module.params["path"], str(found), found.hint),
            **_for_others(module.params, read),
        }
    raise found


if __name__ == "__main__":
    main()
