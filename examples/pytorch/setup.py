# SPDX-License-Identifier: Apache-2.0
"""Builds the operators on the headers of this checkout."""
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

here = Path(__file__).resolve().parent

setup(
    name="mhar-torch",
    version="0.1",
    packages=["mhar_torch"],
    ext_modules=[
        CppExtension(
            "mhar_torch._operators",
            ["csrc/route_cpu.cpp"],
            include_dirs=[str(here.parents[1] / "include")],
            extra_compile_args=["-O3", "-std=c++17"],
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
