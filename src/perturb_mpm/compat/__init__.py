"""Other programs' interfaces on ours: pydensecrf's modules, transforms, strategies, layers.

Each is a module of its own and loads what it needs only when it is imported:
``perturb_mpm.compat.pydensecrf``, ``perturb_mpm.compat.monai``, ``perturb_mpm.compat.torchio``,
``perturb_mpm.compat.monailabel`` and ``perturb_mpm.compat.napari``.
"""

__all__: list[str] = []
