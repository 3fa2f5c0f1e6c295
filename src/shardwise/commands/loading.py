"""From the words of the command line to a user's function and its arguments: `module:function`, `--args`, `--mesh`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardwise.compiled.signature import EXAMPLE, check_on, parse_types
from shardwise.compiled.text.sources import is_users
from shardwise.errors import CompileError, ShardwiseError, did_you_mean, one_line, quoted
from shardwise.mesh import Mesh
from shardwise.projects import Roots, check_inside, check_module_inside


def load(reference: str, folder: str | Path | None = None, inside: Roots = None) -> Any:
    """Import what `module:name` or `file.py:name` says; the name may be a path, as `Model.step`.

    >>> load("math:sqrt")(4.0)
    2.0

    Args:
        folder: where a file or module is looked for beside the current folder.
        inside: the folders of a project: what lies outside them, or is installed, is not imported.

    Raises:
        CompileError: there is no such module or name, or importing it raises, with the user's own error and its line; or
            it lies outside.
    """
    where, colon, path = reference.rpartition(":")
    if not colon or not where or not all(part.isidentifier() for part in path.split(".")):
        raise CompileError(
            f"{quoted(reference)} names no function: write module:function or file.py:function, as train.py:step"
        )
    folders = [os.getcwd(), *([os.path.abspath(folder)] if folder is not None else [])]
    sys.path[:0] = [entry for entry in folders if entry not in sys.path]
    if where.endswith(".py") or os.sep in where:
        found = _import_file(where, folders, inside)
    else:
        check_inside(where, _places_of(where), inside)
        found = _import_module(where)
    walked = where
    for part in path.split("."):
        check_module_inside(walked, found, inside)
        with _users_errors(f"{one_line(walked)} does not give {part}"):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise CompileError(f"{one_line(walked)} has no {quoted(part)}{did_you_mean(part, _public(found))}") from None
        walked += f".{part}"
    return found


def _public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("__")]


def load_function(reference: str, folder: str | Path | None = None, inside: Roots = None) -> Callable[..., Any]:
    """Import a function; see `load`.

    Raises:
        CompileError: it cannot be imported, or is not callable.
    """
    found = load(reference, folder, inside)
    if not callable(found):
        raise CompileError(f"{one_line(reference)} is {_kind(found)} and not a function: name one, as train.py:step")
    return found


def _kind(found: Any) -> str:
    return f"a value of type {type(found).__name__}"


def _import_module(name: str) -> Any:
    with _users_errors(f"{name} cannot be imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the user's module imports
            raise CompileError(
                f"there is no module {one_line(error.name)}: it is looked for in the current folder and among what is "
                f"installed; a file is named with its ending, as {one_line(name.rsplit('.', 1)[-1])}.py:function"
            ) from None


def _places_of(name: str) -> list[str]:
    """Where a module's outermost package lies, found without importing it; nowhere for what is built in."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):  # as of __main__, which nothing was imported from
        return []
    if spec is None:
        return [os.getcwd()]  # importing it says that there is none
    return [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())


def _import_file(where: str, folders: list[str], inside: Roots) -> Any:
    path = next((path for path in (Path(base, where) for base in folders) if path.is_file()), None)
    if path is None:
        raise CompileError(f"there is no file {one_line(where)}")
    check_inside(where, [str(path)], inside)
    path = path.resolve()
    if (path.parent / "__init__.py").exists():
        return _import_in_package(path)
    name = path.stem
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) and Path(str(known.__file__)).resolve() == path:
            return known
        name = f"shardwise_user_{name}"  # as json.py, which must not take the place of another module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CompileError(f"{one_line(where)} cannot be imported: a Python file ends in .py")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with _users_errors(f"{where} cannot be imported"):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


def _import_in_package(path: Path) -> Any:
    """A file of a package, under its dotted name, so that it may import its neighbours."""
    names, root = [] if path.stem == "__init__" else [path.stem], path.parent
    while (root / "__init__.py").exists():
        names, root = [root.name, *names], root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return _import_module(".".join(names))


@contextlib.contextmanager
def _users_errors(what: str) -> Iterator[None]:
    """Tell an error of the user's code in one line, with the file and the line that it comes from."""
    try:
        yield
    except (ShardwiseError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also SystemExit, which a script without a main guard raises
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        told = f"{type(error).__name__}: {one_line(said)}".removesuffix(": ")
        raise CompileError(f"{one_line(what)}: {_line_of(error)}{told}") from error


def _line_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{one_line(os.path.relpath(error.filename))}:{error.lineno}: "
    found = ""
    frame = error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if is_users(file) and os.path.abspath(file) != os.path.abspath(__file__):
            found = f"{one_line(os.path.relpath(file))}:{frame.tb_lineno}: "
        frame = frame.tb_next
    return found


# Arguments.


def arguments(text: str, mesh: Any, folder: str | Path | None = None, inside: Roots = None) -> tuple[Any, ...]:
    """What `--args` says: types, or a function that returns the arguments.

    Args:
        text: `"bfloat16[8192@x,1024] int32[]"`, or `module:function`; that function is given `mesh=` if it takes one.
        mesh: a JAX mesh (one without devices will do) or None.
        folder, inside: as `load` takes them.

    Raises:
        ShardwiseError: the text is no types, or its layouts do not fit the mesh, or the function raises.
    """
    if ":" not in text or "[" in text:
        return shape_structs(text, mesh)
    function = load_function(text, folder, inside)
    with _users_errors(f"--args {text} raises"):
        made = function(mesh=mesh) if "mesh" in _parameters(function) else function()
    return made if isinstance(made, tuple) else (made,)


def shape_structs(text: str, mesh: Any = None) -> tuple[Any, ...]:
    """Make a `jax.ShapeDtypeStruct` of each type, with its layout on a mesh.

    >>> import shardwise as sw
    >>> tuple(shape_structs("bfloat16[8@x,4] int32[]", sw.make_mesh("x=4"))[0].sharding.spec)
    ('x', None)

    Raises:
        NotationError: the text is no types.
        LayoutError: a layout that the mesh has not, or that does not divide a size.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    types = parse_types(text)
    check_on(types, None if mesh is None else Mesh.parse(mesh))
    structs = []
    for each in types:
        spec = PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in each.axes))
        laid = None if mesh is None else NamedSharding(mesh, spec)
        structs.append(jax.ShapeDtypeStruct(each.shape, jax.numpy.dtype(each.dtype), sharding=laid))
    return tuple(structs)


def check_call(reference: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Check that a function takes these arguments.

    Raises:
        CompileError: it needs others.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of some built-in functions Python knows none
    try:
        signature.bind(*args)
    except TypeError as error:
        told = f"{one_line(reference)} takes {one_line(str(signature))}, and --args gives {len(args)}: {one_line(str(error))}"
        raise CompileError(f'{told}\nwrite one type for each, as --args "{EXAMPLE}", or module:function') from None


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
