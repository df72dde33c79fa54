"""What of a Hydra script's surroundings `platform init --from` takes along: a configuration above it, its modules and files.

Not checked here: the other styles, and a configuration beside the script (test_from_script.py).
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from trialplane.cli import script_folder
from trialplane.plan import pack
from trialplane.spec import load

SCRIPT = """
import hydra
from own import doubled

@hydra.main(version_base=None, config_path="../conf", config_name="config")
def main(cfg):
    for file in ("data/rows.csv", "words.txt"):
        open(file).close()
    print(f"val_loss={doubled(cfg.opt.lr)}")

if __name__ == "__main__":
    main()
"""
FILES = {
    "src/fit.py": SCRIPT,
    "src/own.py": "def doubled(number): return 2 * number\n",
    "src/words.txt": "w\n",
    "data/rows.csv": "a,b\n",
    "conf/config.yaml": "defaults: [{opt: adam}]\n",
    "conf/opt/adam.yaml": "lr: 0.25\n",
    "conf/opt/sgd.yaml": "lr: 0.5\n",
    "conf/.hydra/config.yaml": "of: an earlier run\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def contents(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_a_configuration_above_the_script_is_found_as_it_is(platform, workplace: Path) -> None:
    write(workplace / "project", FILES)
    result = platform("init", "--from", "project/src/fit.py")
    assert result.exit_code == 0, result.output
    assert "fit.py ended after" in result.stderr and "its metrics: val_loss" in result.stderr, "in the job's own folder"
    folder = Path("jobs/fit")
    kept = set(FILES) - {"conf/.hydra/config.yaml"}
    assert contents(folder) == kept | {"job.yaml", "words.txt"}, "it runs in the folder above its own"
    job = load.load_job(folder)
    assert job.script == "src/fit.py" and job.search.parameters["opt"].choices == ("adam", "sgd")
    assert "# conf/config.yaml has the other defaults" in (folder / "job.yaml").read_text()
    assert "is valid" in platform("validate", "fit").stdout


def test_a_configuration_that_is_not_there_makes_no_job(platform, workplace: Path) -> None:
    write(workplace / "project", {name: text for name, text in FILES.items() if not name.startswith("conf")})
    result = platform("init", "--from", "project/src/fit.py")
    assert result.exit_code == 2 and "fit.py names no Hydra configuration that is there" in result.stderr
    assert not Path("jobs/fit").exists()


def test_what_has_the_name_of_the_jobs_file_is_told(platform, workplace: Path) -> None:
    files = {
        **FILES,
        "src/fit.py": SCRIPT.replace("../conf", ".."),
        "config.yaml": "defaults: [job, _self_]\nopt: {lr: 0.25}\n",
        "job.yaml": "a: 1\n",
    }
    write(workplace / "project", files)
    result = platform("init", "--from", "project/src/fit.py")
    assert result.exit_code == 0, result.output
    assert "project/job.yaml is not copied: the job's own file has that name" in result.stderr
    assert load.load_job(Path("jobs/fit")).script == "src/fit.py"


def test_of_a_folder_that_holds_the_script_too_only_what_the_configuration_names_is_copied(tmp_path: Path) -> None:
    files = {
        **{name.replace("conf/", ""): text for name, text in FILES.items()},
        "src/fit.py": SCRIPT.replace("../conf", ".."),
        "config.yaml": "defaults: [base, override /opt@here: adam, _self_]\n",
        "base.yaml": "x: 1\n",
        "secrets.yaml": "password: of-mine\n",
        "data/large.yaml": "y: 1\n",
    }
    project = write(tmp_path / "project", files)
    copied = script_folder.copy(project / "src" / "fit.py", tmp_path / "code")
    found = {name for name in contents(tmp_path / "code") if name.endswith(".yaml")}
    assert (found, copied.left) == ({"config.yaml", "base.yaml", "opt/adam.yaml", "opt/sgd.yaml"}, ())


def test_a_configuration_that_is_large_or_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_folder, "_LARGEST", 100)
    project = write(tmp_path / "project", {**FILES, "conf/opt/large.yaml": "# " + 100 * "x", "elsewhere.yaml": "a: 1"})
    (project / "conf" / "opt" / "link.yaml").symlink_to(project / "elsewhere.yaml")
    (project / "src" / "fit.py").write_text(SCRIPT)
    copied = script_folder.copy(project / "src" / "fit.py", tmp_path / "code")
    assert [text.rpartition("/")[2].partition(":")[0] for text in copied.left] == [
        "large.yaml is not copied",
        "link.yaml is not copied",
    ]


def test_more_files_than_travel_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_folder, "_MOST_FILES", 2)
    project = write(tmp_path / "project", FILES)
    copied = script_folder.copy(project / "src" / "fit.py", tmp_path / "code")
    assert copied.left == (f"{project / 'conf'} has 3 YAML files, and the job gets 2 of them",)
    assert (tmp_path / "code" / copied.config).read_text() == FILES["conf/config.yaml"], "those near the top come first"


def test_a_folder_that_the_script_names_comes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No larger than a file may be, without links, which lead elsewhere, and without what is hidden."""
    file = tmp_path / "mine" / "train.py"
    (file.parent / "data" / "small" / ".cache").mkdir(parents=True)
    (file.parent / "outputs").mkdir()
    file.write_text("import argparse\nhome, out, here, root = './data/small', 'outputs', '.', '.root'\n")
    for name in (".root", "data/small/train.txt", "data/small/.cache/x", "outputs/model.pt", "not_named.txt"):
        (file.parent / name).write_text("text" * (200 if name.startswith("outputs") else 1))
    (tmp_path / "secret").write_text("x")
    (file.parent / "data" / "small" / "link").symlink_to(tmp_path / "secret")
    monkeypatch.setattr(script_folder, "_LARGEST", 100)
    copied = script_folder.copy(file, tmp_path / "made")
    there = sorted(str(one.relative_to(tmp_path / "made")) for one in (tmp_path / "made").rglob("*") if one.is_file())
    assert there == ["data/small/train.txt", "train.py"]
    hidden, told = copied.left
    assert hidden == ".root is hidden: if the job needs it, copy it, and have it travel by `!.root` in .jobignore"
    assert told.startswith("outputs is too large to travel with the job: if the script reads it, give its whole path")


def test_the_lines_that_a_message_names_let_what_is_hidden_travel(tmp_path: Path) -> None:
    hidden = {"./.root": ".root", "conf/.h/x.yaml": "conf/.h/x.yaml", ".h/.x": ".h/.x", "a/../.d/": ".d/file"}
    files = dict.fromkeys(hidden.values(), "x")
    mine = write(tmp_path / "mine", {"train.py": f"names = {list(hidden)}\n", "a/here": "", **files})
    copied = script_folder.copy(mine / "train.py", tmp_path / "code")
    assert len(copied.left) == len(hidden) and all(" is hidden: " in text for text in copied.left)
    assert contents(tmp_path / "code") == {"train.py"}
    for text in copied.left:
        name = text.partition(" ")[0]
        folder = write(tmp_path / "jobs" / name.replace("/", "-"), files)
        (folder / ".jobignore").write_text("\n".join(re.findall("`(.*?)`", text)))
        assert [file for file in pack.pack(folder).files if file.startswith(name)], text


def test_of_two_folders_that_of_the_link_comes_first(tmp_path: Path) -> None:
    """File by file, and nothing is written over a module."""
    write(tmp_path / "real", {"train.py": "import lib.own\nhere = 'data', 'lib'\n", "lib/own.py": "at = 'real'\n"})
    write(tmp_path / "real", {"data/a": "real", "data/b": "real"})
    link = write(tmp_path / "link", {"data/a": "link", "lib/own.py": "at = 'link'\n"}) / "train.py"
    link.symlink_to(tmp_path / "real" / "train.py")
    assert script_folder.copy(link, tmp_path / "code").left == ()
    copies = {name: (tmp_path / "code" / name).read_text() for name in ("data/a", "data/b", "lib/own.py")}
    assert copies == {"data/a": "link", "data/b": "real", "lib/own.py": "at = 'real'\n"}


def test_what_cannot_be_copied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = write(tmp_path / "mine", {"train.py": f"here = 'data', 'pipe', {255 * 'ü'!r}\n", "data/a": "", "data/b": ""})
    os.mkfifo(mine / "data" / "pipe")
    os.mkfifo(mine / "pipe")
    real = shutil.copy

    def copy(file: Path, to: Path) -> None:
        if file.name == "a":
            raise PermissionError(13, "Permission denied")
        real(file, to)

    monkeypatch.setattr(shutil, "copy", copy)
    copied = script_folder.copy(mine / "train.py", tmp_path / "code")
    assert copied.left == (f"{mine / 'data' / 'a'} cannot be copied: Permission denied",)
    assert contents(tmp_path / "code") == {"train.py", "data/b"}


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(here: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied")

    mine = write(tmp_path / "mine", {"train.py": "here = 'data'\n", "data/a": ""})
    monkeypatch.setattr(script_folder, "_files", fails)
    copied = script_folder.copy(mine / "train.py", tmp_path / "code")
    assert copied.left == (f"{mine / 'data'} cannot be read: Permission denied",)


def test_no_link_leads_to_what_is_hidden_or_to_the_scripts_folder(tmp_path: Path) -> None:
    text = SCRIPT.replace('"data/rows.csv", "words.txt"', '"data", "file", "all", "up", "src", "kept/file"')
    project = write(tmp_path / "project", {**FILES, "src/fit.py": text, "src/.secret/password": "x", "src/deep/file": "y"})
    for name, to in {"data": ".secret", "file": ".secret/password", "all": ".", "up": "..", "kept": "deep"}.items():
        (project / "src" / name).symlink_to(to)
    (project / "data" / "rows.csv").unlink()
    (project / "data").rmdir()
    copied = script_folder.copy(project / "src" / "fit.py", tmp_path / "code")
    above = "is the script's folder, or one above it: copy what the job needs of it"
    hidden = "which is hidden: if the job needs it, copy it"
    assert copied.left == (
        f"all {above}",
        f"data leads by a link to .secret, {hidden}",
        f"file leads by a link to .secret/password, {hidden}",
        f"src {above}",
        f"up {above}",
    )
    assert not any((tmp_path / "code" / name).read_text() == "x" for name in contents(tmp_path / "code"))
    assert (tmp_path / "code" / "kept" / "file").read_text() == "y"
