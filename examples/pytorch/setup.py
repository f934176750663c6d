# SPDX-License-Identifier: Apache-2.0
"""Builds the operators on the headers of this checkout; with CUDA where torch has it and nvcc is
found."""
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

here = Path(__file__).resolve().parent
with_cuda = CUDA_HOME is not None and torch.version.cuda is not None

sources = ["csrc/schemas.cpp", "csrc/router_autograd.cpp", "csrc/cpu.cpp"]
if with_cuda:
    sources += ["csrc/cuda.cpp", *(f"csrc/gpu_{name}.cu"
                                   for name in ("bfloat16", "float16", "float32", "float64"))]
flags = ["-O3", "-std=c++17"]

setup(
    name="mhar-torch",
    version="0.1",
    packages=["mhar_torch"],
    ext_modules=[
        (CUDAExtension if with_cuda else CppExtension)(
            "mhar_torch._operators",
            sources,
            include_dirs=[str(here.parents[1] / "include")],
            extra_compile_args={"cxx": flags, "nvcc": flags},
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
