"""Other libraries' interfaces on ours: pydensecrf's modules, MONAI's and TorchIO's transforms.

Each is a module of its own and loads what it needs only when it is imported:
``perturb_mpm.compat.pydensecrf``, ``perturb_mpm.compat.monai`` and ``perturb_mpm.compat.torchio``.
"""

__all__: list[str] = []
