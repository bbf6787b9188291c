"""Adds the ``.pth`` file beside the modules; pyproject.toml has no word for that."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPth(build_py):
    """The ordinary build, plus the file that runs `torchvision_schemas.install` at start-up."""

    def run(self) -> None:
        super().run()
        self.copy_file("torchvision_schemas.pth", str(Path(self.build_lib) / "torchvision_schemas.pth"))


setup(cmdclass={"build_py": BuildWithPth})
