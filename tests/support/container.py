"""Runs an unpacked image with runc as a restricted pod would: any user, no capabilities, a root that is read-only."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.image_archive import Image

ANY_USER = 1_234_567


@dataclass(frozen=True)
class Container:
    """A running container: its first process, whose stderr is a pipe, and its name for runc."""

    name: str
    process: subprocess.Popen[str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command beside the first process, with the image's environment."""
        command = ["runc", "exec", self.name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def signal(self, name: str) -> None:
        subprocess.run(["runc", "kill", self.name, name], check=True)

    def wait_for(self, text: str) -> list[str]:
        """The lines of stderr up to the one that holds `text`."""
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return lines
        raise AssertionError(f"ended without saying {text!r}: {''.join(lines)}")


@contextmanager
def run(image: Image, root: Path, *arguments: str, environment: Sequence[str] = ()) -> Iterator[Container]:
    """The image's entry point with `arguments`, until the block ends."""
    name = f"headstart-test-{uuid.uuid4().hex[:8]}"
    bundle = root.parent / name
    bundle.mkdir()
    specification = _specification(image, root, arguments, [*environment], name)
    (bundle / "config.json").write_text(json.dumps(specification))
    command = ["runc", "run", "--bundle", str(bundle), name]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Container(name, process)
        finally:
            subprocess.run(["runc", "delete", "--force", name], capture_output=True, check=False)
            process.communicate(timeout=30)


def _specification(
    image: Image, root: Path, arguments: Sequence[str], environment: list[str], name: str
) -> dict[str, Any]:
    config = image.config["config"]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": ANY_USER, "gid": 0},
            "args": [*config["Entrypoint"], *(arguments or config["Cmd"])],
            "env": [*config["Env"], *environment],
            "cwd": config["WorkingDir"],
            "noNewPrivileges": True,
            "capabilities": {},
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            _writable("/dev/shm"),
            _writable("/tmp"),
            _writable("/scratch"),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "cgroupsPath": f"/{name}",  # runc takes this one away and none above it
        },
    }


def _writable(destination: str) -> dict[str, Any]:
    return {"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]}
