"""Triton's interpreter in place of a GPU, where there is none."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import numpy as np
import pytest


def need_gpu_or_interpreter() -> Any:
    """Return the device that the GPU engine runs on, or skip where it cannot run at all.

    Where there is no GPU, Triton's interpreter stands in, mended, and the device is the CPU.
    """
    torch = pytest.importorskip("torch", reason="engine gpu needs torch")
    pytest.importorskip("triton", reason="engine gpu needs triton")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if os.environ.get("TRITON_INTERPRET") != "1":
        reason = "engine gpu needs a GPU, or TRITON_INTERPRET=1 before triton is imported"
        pytest.skip(reason, allow_module_level=True)
    _mend_interpreter()
    return torch.device("cpu")


@functools.cache
def _mend_interpreter() -> None:
    """Let computed numbers bound loops, multiply matrices alike, patch the language once a launch.

    NumPy 2.4 refuses int() of arrays with one axis. A float32 product of matrices depends, on some
    processors, on where a column stands, which it does on no GPU: sums are made in float64. The
    interpreter patches the language anew for every function that a kernel calls, and finds the
    types of every shape and every number, which nobody asks for: that took most of its time.
    """
    from triton.runtime import interpreter

    patch_tensor, patch_language = interpreter._patch_lang_tensor, interpreter._patch_lang
    executor = interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def tensor(cls: Any, scope: Any) -> None:
        patch_tensor(cls, scope)
        scope.set_attr(cls, "__index__", lambda self: int(self.handle.data.item()))

    def language(function: Any) -> Any:
        modules = {id(value) for value in function.__globals__.values() if inspect.ismodule(value)}
        if modules & LANGUAGE <= patched:
            return interpreter._LangPatchScope()
        patched.update(modules & LANGUAGE)
        return patch_language(function)

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        executor(self, *args, **kwargs)

    def dot(self: Any, a: Any, b: Any, d: Any, *precision: object) -> Any:
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    def gather(self: Any, values: Any, kind: Any = None) -> None:
        self.values = list(values)
        if kind is not None:
            gather_typed(self, values, kind)

    def find_member(self: Any, name: str) -> Any:
        if name != "type":
            return member(self, name)
        self.type = core._type_for_tuple_values(self.values)
        return self.type

    def shape_block(self: Any, element: Any, shape: Any) -> None:
        sizes = tuple(int(size) for size in shape)
        if (element.name, sizes) not in blocks:
            make_block(self, element, shape)
            blocks[element.name, sizes] = vars(self).copy()
        vars(self).update(blocks[element.name, sizes])

    def numpy_type(kind: Any) -> Any:
        if kind.name not in types:
            types[kind.name] = find_type(kind)
        return types[kind.name]

    core = interpreter.tl.core
    gather_typed, member = core.tuple.__init__, core.tuple.__getattr__
    core.tuple.__init__, core.tuple.__getattr__ = gather, find_member
    blocks: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    make_block, core.block_type.__init__ = core.block_type.__init__, shape_block
    types: dict[str, Any] = {}
    find_type, interpreter._get_np_dtype = interpreter._get_np_dtype, numpy_type
    LANGUAGE = {id(interpreter.tl), id(interpreter.tl.core)}
    interpreter._patch_lang_tensor = tensor
    interpreter._patch_lang = language
    interpreter.GridExecutor.__call__ = launch
    interpreter.InterpreterBuilder.create_dot = dot
