"""What of a script's surroundings `platform init --from` needs: Hydra's configuration above it, and its own modules.

Not checked here: the other styles, and a configuration beside the script (test_from_script.py).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.cli.conftest import write

from trialplane.errors import SpecError
from trialplane.importing import own_folder, script_folder
from trialplane.job import load

SCRIPT = """
import hydra
from own import doubled

@hydra.main(version_base=None, config_path="../conf", config_name="config")
def main(cfg):
    for file in ("data/rows.csv", "src/words.txt"):
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
}


def test_a_configuration_above_the_script_makes_the_folder_above_the_jobs(platform, workplace: Path) -> None:
    write(workplace / "project", FILES)
    result = platform("init", "--from", "project/src/fit.py")
    assert result.exit_code == 0, result.output
    assert "fit.py ended after" in result.stderr and "its metrics: val_loss" in result.stderr, "in the job's own folder"
    job = load.load_job(Path("project"))
    assert job.script == "src/fit.py" and job.search.parameters["opt"].choices == ("adam", "sgd")
    assert "# ../conf/config.yaml has the other defaults" in Path("project/job.yaml").read_text()
    assert "is valid" in platform("validate", "./project").stdout


def test_a_value_of_a_configuration_replaces_that_of_its_group(platform, workplace: Path) -> None:
    files = {**FILES, "conf/config.yaml": "defaults: [{opt: adam}, _self_]\nopt: {lr: 0.75}\n"}
    write(workplace / "project", files)
    result = platform("init", "--from", "project/src/fit.py", "--space", "opt=adam,sgd", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert Path("project/job.yaml").read_text().count("  # opt.lr: 0.75\n") == 1
    assert Path("project/job.yaml").read_text().count("opt.lr: {") == 1, "a parameter that could be searched"


def test_a_configuration_that_is_not_there_makes_no_job(platform, workplace: Path) -> None:
    write(workplace / "project", {name: text for name, text in FILES.items() if not name.startswith("conf")})
    result = platform("init", "--from", "project/src/fit.py")
    assert result.exit_code == 2 and "fit.py names no existing Hydra configuration" in result.stderr
    assert not list(Path("project").rglob("job.yaml"))


def test_the_modules_of_a_script_are_those_that_it_needs(tmp_path: Path) -> None:
    files = {
        "fit.py": "import nets\ndef late():\n    from lib.deep import x\n",
        "nets.py": "import fit, torch\n",
        "lib/__init__.py": "",
        "lib/deep.py": "from . import other\n",
        "lib/other.py": "",
        "unused.py": "",
    }
    found = script_folder.modules(write(tmp_path, files) / "fit.py")
    assert set(map(str, found)) == set(files) - {"unused.py"} and next(iter(found)) == Path("fit.py")


@pytest.mark.parametrize("data", [b"x = (\n", b"\0", b"# coding: no-such\n", b"\xff\n"])
def test_what_is_not_python_is_told_with_the_reason(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "fit.py").write_bytes(data)
    with pytest.raises(SpecError, match=r"fit\.py(:\d+)?: script: is not Python: \S+"):
        script_folder.modules(tmp_path / "fit.py")


@pytest.mark.parametrize(
    "data",
    [
        "str(Path(__file__).absolute().parents[1] / 'data' / 'rows.csv')",
        "os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'data/rows.csv')",
        "HERE.parent.joinpath('data') / sys.argv[0].replace('fit.py', 'rows.csv').rpartition('/')[2]",
    ],
)
def test_data_that_a_script_finds_from_its_own_path_is_in_the_jobs_folder(platform, workplace: Path, data: str) -> None:
    text = f"import os, sys\nfrom pathlib import Path\n\nHERE = Path(__file__).parent\nlr = 0.1\nopen({data}).close()\n"
    write(workplace / "project", {"src/fit.py": text + "print(f'loss={lr}')\n", "data/rows.csv": "a,b\n"})
    result = platform("init", "--from", "project/src/fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert load.load_job(Path("project")).objectives[0].metric == "loss"


def test_paths_that_no_file_can_have_are_skipped(platform, workplace: Path) -> None:
    paths = "A = Path(__file__).parents[1] / 'a\\0b'\nB = '../data/a\\0.csv'\nC = '../loop/a.csv'\n"
    text = f"from pathlib import Path\n\n{paths}lr = 0.1\n"
    write(workplace / "project", {"src/fit.py": text + "print(f'loss={lr}')\n"})
    (workplace / "project" / "loop").symlink_to("loop")
    result = platform("init", "--from", "project/src/fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output


@pytest.mark.parametrize("path", ["Path(x) / 'data'", "(Path(__file__) / 'data')", "Path(__file__).parents[1]"])
def test_other_expressions_are_no_paths_above_the_script(path: str) -> None:
    tree = ast.parse(f"from pathlib import Path\nx = x / 'data'\n{path}\n")
    assert list(own_folder.upward_paths(tree)) == []
