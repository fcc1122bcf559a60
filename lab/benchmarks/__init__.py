"""Our engines and pydensecrf2 on the same model, the same machine, in the same run.

``cpu``, ``gpu``, ``gpu_pack``, ``segmenter``, ``evaluation`` and ``figures`` are commands:
``python -m lab.benchmarks.cpu --help``. Nothing is imported from here by others.
"""

__all__: list[str] = []
