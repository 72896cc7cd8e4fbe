"""Package metadata. Tool settings live in pyproject.toml, exact versions in requirements/*.lock.

Install with ``make setup``. The bounds below say what the code was written for; they are not a way
to install the whole stack, because no plain resolver can: sglang 0.5.12 declares a transformers
that verl 0.9.1 forbids, and the dependencies of Megatron-Bridge build CUDA code. Both are therefore
in the lock files only. NVIDIA Apex is not named here either: ``apex`` on PyPI is another project.
"""

from pathlib import Path

from setuptools import find_packages, setup

STACK = [
    "verl>=0.9.1,<0.10",
    "torch>=2.11,<2.12",
    "transformers>=5.9,<5.10",
    "megatron-core>=0.19.2,<0.20",
    "ray[default]>=2.60,<2.61",
    "TransferQueue>=0.1.11,<0.2",
    "tensordict>=0.10,<0.11",
    "kernels<0.11",
    "tensorboard>=2.19",
]
CUDA_KERNELS = [
    "sglang-kernel==0.4.2.post2",
    "flashinfer-python==0.6.11.post1",
    "flashinfer-cubin==0.6.11.post1",
    "flash-attn-4>=4.0.0b9",
]
TEXT_RETRIEVAL = ["bm25s>=0.2.14,<0.4", "PyStemmer>=2.2,<4"]
DEV = [
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "ruff>=0.9",
    "mypy>=1.13",
]

setup(
    name="megatron-agent",
    version="0.1.0",
    description="Train language-model agents by step-level RL on stock verl, Megatron and SGLang",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The megatron_agent contributors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    # megatron-core 0.19 needs 3.12; verl 0.9 ends below 3.13.
    python_requires=">=3.12,<3.13",
    packages=[*find_packages(include=["megatron_agent*", "envs*"]), "megatron_agent.configs"],
    # configs/ stays at the root, where people edit it; a wheel carries it inside the package.
    package_dir={"megatron_agent.configs": "configs"},
    package_data={"megatron_agent.configs": ["**/*.yaml", "**/*.json"]},
    install_requires=[
        "gymnasium>=1.1,<2",
        "hydra-core>=1.3,<1.4",
        "numpy>=2.0",
        "omegaconf>=2.3,<2.4",
        "pyarrow>=19",
        "rapidfuzz>=3.13,<4",
        "rich>=13.9,<16",
    ],
    extras_require={
        "cpu": STACK,
        "gpu": [*STACK, *CUDA_KERNELS],
        "dev": DEV,
        # One per environment with heavy dependencies. The two that stand on TextWorld compile
        # Jericho (GPL-2.0), ALFWorld also Fast Downward (GPL): they need cmake and a C++ compiler.
        "alfworld": ["alfworld>=0.4.2,<0.5", "textworld>=1.7,<2"],
        "textworld": ["textworld>=1.7,<2"],
        # JARs in wheels: they need a Java at run time.
        "textworld-express": ["textworld-express>=1.1,<2"],
        "scienceworld": ["scienceworld>=1.2.3,<2"],
        "webshop": TEXT_RETRIEVAL,
        "search": TEXT_RETRIEVAL,
        # For a retrieval server that searches by meaning: the encoder and its index.
        "search-dense": [*TEXT_RETRIEVAL, "faiss-cpu>=1.9,<2", "sentence-transformers>=3.3,<6"],
        "minigrid": ["minigrid>=3.2,<4"],
        "openenv": ["aiohttp>=3.11,<4"],
    },
    entry_points={
        "console_scripts": ["megatron-agent = megatron_agent.cli:main"],
        "verl.plugins": ["megatron_agent = megatron_agent.backend.plugin:register"],
        # Other distributions add environments under this group; ours are in the built-in table.
        "megatron_agent.envs": [],
    },
)
