"""Pushing: what can be refused is refused before any work; the rest goes by the real client to a Hub on loopback."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import reading
from conftest import ROOT

POETRY = "Poetry50KRetrieval"


class Hub(ThreadingHTTPServer):
    """As much of the Hub's HTTP interface as one dataset repository and one branch need."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created: list[str] = []
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}  # large files by SHA-256
        self.uploads: list[str] = []
        self.commits: list[list[dict]] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def commit(self, operations: list[dict]) -> None:
        self.commits.append(operations)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.files[value["path"]] = self.objects[value["oid"]]
            elif operation["key"] == "deletedFile":
                del self.files[value["path"]]

    def paths_of(self, commit: list[dict], *keys: str) -> set[str]:
        return {operation["value"]["path"] for operation in commit if operation["key"] in keys}


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/api/datasets/me/poetry/tree/"):
            self.answer([describe(name, content) for name, content in self.server.files.items()])
        elif path.startswith("/api/datasets/me/poetry"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self.answer({"id": "me/poetry", "sha": "0" * 40, "siblings": siblings, "private": False, "tags": []})
        else:
            self.answer({"error": "not found"}, 404)

    def do_PUT(self):
        oid = self.path.rsplit("/", 1)[1]
        self.server.objects[oid] = self.body()
        self.server.uploads.append(oid)
        self.answer({})

    def do_POST(self):
        body, path = self.body(), self.path.split("?")[0]
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            self.server.created.append(json.loads(body)["name"])
            self.answer({"url": f"{self.server.url}/datasets/me/poetry", "name": "me/poetry", "id": "1"})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".parquet") else "regular",
                    "shouldIgnore": False,
                    "oid": self.known_oid(file["path"]),
                }
                for file in files
            ]
            self.answer({"files": modes})
        elif path.endswith("/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            self.answer({"transfer": "basic", "objects": [self.lfs_object(one) for one in asked]})
        elif "/commit/" in path:
            self.server.commit([json.loads(line) for line in body.splitlines() if line.strip()])
            commit_url = f"{self.server.url}/datasets/me/poetry/commit/{len(self.server.commits):040}"
            self.answer({"commitUrl": commit_url, "commitOid": f"{len(self.server.commits):040}", "hookOutput": ""})
        else:
            self.answer({"error": f"not found: {path}"}, 404)

    def known_oid(self, name: str) -> str | None:
        if name not in self.server.files:
            return None
        known = describe(name, self.server.files[name])
        return known.get("lfs", known)["oid"]

    def lfs_object(self, asked: dict) -> dict:
        answer = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] not in self.server.objects:
            answer["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{asked['oid']}"}}
        return answer

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, content, status=200):
        encoded = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *args):
        if os.environ.get("HUB_LOG"):
            print(self.command, self.path, file=sys.stderr)


def describe(name: str, content: bytes) -> dict:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"type": "file", "path": name, "size": len(content), "oid": oid}
    if name.endswith(".parquet"):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


@pytest.fixture
def hub():
    server = Hub()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def stage(sample, tmp_path):
    """(arguments, environment) -> the finished command, staging poetry's sample into `tmp_path/out`."""

    def run(*arguments, **environment):
        command = [sys.executable, "-m", "tools", "stage", POETRY, "--data-dir", sample / "poetry"]
        command += ["--sidecars", tmp_path / "sidecars", "--out", tmp_path / "out", *arguments]
        inherited = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_ENDPOINT")}
        settings = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0", **environment}
        settings.setdefault("HF_ENDPOINT", "http://127.0.0.1:9")
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, env=inherited | settings, capture_output=True, text=True, timeout=120
        )
        written = "".join(content.decode("latin-1") for content in reading.contents(tmp_path / "out").values())
        for token in ("hf_right", "hf_wrong"):
            assert token not in done.stdout + done.stderr + written
        return done

    return run


def test_a_push_makes_the_repository_equal_to_the_folder_in_one_commit(stage, hub, tmp_path):
    token = {"HF_TOKEN": "hf_right", "HF_ENDPOINT": hub.url}
    hub.files = {".gitattributes": b"x", "bm25/test-00000-of-00001.parquet": b"stale", "notes.md": b"not staging's"}
    done = stage("--push", "me/poetry", **token)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"pushed: {hub.url}/datasets/me/poetry/commit/")
    assert len(hub.commits) == 1 and hub.created == ["poetry"]
    expected = reading.contents(tmp_path / "out")
    assert hub.files == expected | {".gitattributes": b"x", "notes.md": b"not staging's"}
    assert 'repository, split = "me/poetry", "test"' in hub.files["README.md"].decode()

    uploads = len(hub.uploads)
    hub.files["queries/test-00000-of-00001.parquet"] = b"changed by hand"
    again = stage("--push", "me/poetry", "--overwrite", **token)
    assert again.returncode == 0, again.stderr
    assert hub.files == expected | {".gitattributes": b"x", "notes.md": b"not staging's"}
    assert len(hub.uploads) == uploads, "the Hub had every large file already"
    assert hub.paths_of(hub.commits[-1], "file", "lfsFile") == {"queries/test-00000-of-00001.parquet"}
    assert not hub.paths_of(hub.commits[-1], "deletedFile")


def test_a_dry_run_lists_every_file_and_asks_nobody(stage, hub, tmp_path):
    done = stage("--push", "me/poetry", "--dry-run", HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    files = reading.contents(tmp_path / "out")
    listed = dict(reversed(line.split(maxsplit=1)) for line in done.stdout.splitlines()[-len(files) - 1 : -1])
    assert {path: int(size.replace(",", "")) for path, size in listed.items()} == {
        path: len(content) for path, content in files.items()
    }
    assert not hub.commits and not hub.created


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--push", "me/poetry"], {}, "no Hugging Face token"),
        (["--push", "a/b/c"], {"HF_TOKEN": "hf_right"}, "not a repository id"),
        (["--push", "not an id"], {"HF_TOKEN": "hf_right"}, "not a repository id"),
        (["--push", "a--b"], {"HF_TOKEN": "hf_right"}, "not a repository id"),
        (["--dry-run"], {}, "--push REPO_ID"),
    ],
)
def test_what_cannot_be_pushed_is_one_line_before_any_work(stage, tmp_path, arguments, environment, words):
    done = stage(*arguments, **environment)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("refused", ["token", "connection"])
def test_a_push_that_fails_says_why_and_leaves_the_folder(stage, hub, tmp_path, refused):
    if refused == "token":
        environment = {"HF_TOKEN": "hf_wrong", "HF_ENDPOINT": hub.url}
    else:
        environment = {"HF_TOKEN": "hf_right", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = stage("--push", "me/poetry", **environment)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("python -m tools stage: --push me/poetry: ")
    assert f"hf upload me/poetry {tmp_path / 'out'} --repo-type dataset" in line
    assert (tmp_path / "out" / "README.md").is_file() and "Traceback" not in done.stderr
