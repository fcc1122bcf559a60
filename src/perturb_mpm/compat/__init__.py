"""Other libraries' interfaces on top of ours: pydensecrf's modules, MONAI's transforms.

Each is a module of its own and loads what it needs only when it is imported:
``perturb_mpm.compat.pydensecrf`` and ``perturb_mpm.compat.monai``.
"""

__all__: list[str] = []
