"""Build step: put `conf/` and `experiments/`, which are at the top of the tree, into the package.

Everything else is in pyproject.toml. An editable install leaves them where they are
(`chimera.paths`).
"""

from pathlib import Path
from shutil import copyfile

from setuptools import setup
from setuptools.command.build_py import build_py

TREE = Path(__file__).resolve().parent
#: Folder at the top of the tree, and what is left out of it: reports are for readers of the tree.
FOLDERS = {"conf": None, "experiments": "results"}


class BuildWithConfiguration(build_py):
    """`build_py` that adds the folders of configuration."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._configuration():
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        added = [] if self.editable_mode else [target for _, target in self._configuration()]
        return [*super().get_outputs(include_bytecode), *added]

    def _configuration(self) -> list[tuple[Path, str]]:
        files = (
            file.relative_to(TREE)
            for folder, without in FOLDERS.items()
            for file in sorted((TREE / folder).rglob("*"))
            if file.is_file() and without not in file.parts
        )
        return [(TREE / file, str(Path(self.build_lib, "chimera", file))) for file in files]


setup(cmdclass={"build_py": BuildWithConfiguration})
