"""Checkpoints: a folder of config.json and three safetensors files, replaced as a whole (docs/formats.md).

A folder is written beside the old one and the two change places by renames: whenever it stops, a full disk or a kill,
there is a whole checkpoint, the new or the previous one, which the next reader or writer puts back in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagegram_io.errors import FormatError
from pagegram_io.job import StreamSpec
from pagegram_io.layout import Layout
from pagegram_io.models.addressing import Addressing, OwnRows
from pagegram_io.models.memory import Memory
from pagegram_io.models.presets import PRESETS, Preset
from pagegram_io.models.train_job import TrainJob
from pagegram_io.models.transformer import Decoder
from pagegram_io.records import provenance
from pagegram_io.strict_json import is_whole, parse_json, shown
from pagegram_io.table_file import layout_from_json, layout_to_json
from pagegram_io.tokens import Stream, shipped_path

if TYPE_CHECKING:
    from pagegram_io.models.trainer import Trainer

SCHEMA = 1
PRESET_MAX = 2**40  # of a number in a preset: table_params is the largest
CONTEXT_MAX = 2**20
CONFIG, MODEL, TABLE, OPTIMIZER = "config.json", "model.safetensors", "table.safetensors", "optimizer.safetensors"


# ---- folders -------------------------------------------------------------------------------------


def _previous(path: Path) -> Path:
    return path.with_name(f".{path.name}.previous")


def recover(path: Path) -> None:
    """Put back the previous checkpoint where a kill came between the two renames of a replacement."""
    if not path.exists() and _previous(path).is_dir():
        os.rename(_previous(path), path)


def refuse_folder(path: str, *, force: bool) -> None:
    """FileExistsError unless a new checkpoint may stand there; with force it may replace an old one, nothing else."""
    folder = Path(path)
    recover(folder)
    if not folder.exists():
        if not folder.absolute().parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(folder.absolute().parent))
        return
    if not (folder / CONFIG).is_file():
        raise FileExistsError(errno.EEXIST, "exists and is not a checkpoint; choose another name", path)
    if not force:
        raise FileExistsError(errno.EEXIST, "exists; --resume goes on with it, --force replaces it", path)


def write_folder(path: str, config: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> None:
    """Write a checkpoint folder, replacing the one there. OSError with the path; the one there then stays."""
    final = Path(os.path.realpath(path))
    recover(final)
    temporary = final.with_name(f".{final.name}-{secrets.token_hex(6)}")
    try:
        os.mkdir(temporary)
        for name, content in tensors.items():
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in content.items()}, temporary / name)
        (temporary / CONFIG).write_text(json.dumps(config, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        mode = os.stat(temporary / CONFIG).st_mode & 0o777  # as the umask decides; save_file's are private
        for name in (*tensors, CONFIG):
            os.chmod(temporary / name, mode)
            with open(temporary / name, "rb") as file:
                os.fsync(file.fileno())
        if final.exists():
            shutil.rmtree(_previous(final), ignore_errors=True)
            os.rename(final, _previous(final))
        os.rename(temporary, final)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        number = int(code.group(1)) if code else errno.EIO
        raise OSError(number, os.strerror(number), path) from None
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if final.exists():
            shutil.rmtree(_previous(final), ignore_errors=True)


def read_config(path: str) -> dict[str, Any]:
    """The config.json of a checkpoint. FormatError for anything else."""
    folder = Path(path)
    recover(folder)
    name = folder / CONFIG
    if folder.exists() and not name.is_file():
        raise FormatError(f"{path}: not a checkpoint: it has no {CONFIG}")
    try:
        config = parse_json(name.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{name}: not JSON ({error})") from None
    if not isinstance(config, dict) or config.get("kind") != "checkpoint":
        raise FormatError(f"{name}: not the configuration of a checkpoint")
    if config.get("schema") != SCHEMA:
        raise FormatError(f"{name}: a checkpoint of schema {config.get('schema')!r}; this program reads {SCHEMA}")
    for key, kinds in _KINDS.items():
        if key not in config:
            raise FormatError(f"{name}: the checkpoint has no {key}")
        if type(config[key]) not in kinds:
            raise FormatError(f"{name}: its {key} is {shown(config[key])}, which no run has")
    if not is_whole(config["state"].get("step"), config["steps"]):
        raise FormatError(f"{name}: its step is {shown(config['state'].get('step'))}, of {config['steps']} steps")
    return config


def read_tensors(path: str, name: str, wanted: dict[str, tuple[int, ...]] | None = None) -> dict[str, Tensor]:
    """The tensors of one file; FormatError where it is damaged or they are not those wanted, by name and shape."""
    file = Path(path) / name
    try:
        tensors = load_file(file)
    except FileNotFoundError:
        raise FormatError(f"{path}: not a whole checkpoint: it has no {name}") from None
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
    if wanted is not None:
        found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        wrong = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        if wrong:
            key = wrong[0]
            raise FormatError(f"{file}: tensor {key} is {found.get(key)}, and this model's is {wanted.get(key)}")
    return tensors


# ---- what a checkpoint says ----------------------------------------------------------------------

# The keys of config.json, and the types that their values may have. The first must be the same for a run to go on.
_NONE = type(None)
_SETTINGS: dict[str, tuple[type, ...]] = {
    "preset": (dict,),
    "memory": (str,),
    "slots": (int, _NONE),
    "table_params": (int, _NONE),
    "row_count": (int, _NONE),
    "row_width": (int, _NONE),
    "gate": (str,),
    "seed": (int,),
    "hash_seed": (int,),
    "steps": (int,),
    "table_decay": (int, float),
    "bias_correction": (str,),
    "stream_sha256": (str,),
    "validation_sha256": (str,),
}
_KINDS = _SETTINGS | {
    "layout": (str, _NONE),
    "stream": (dict,),
    "validation": (dict,),
    "state": (dict,),
}


def settings_of(trainer: Trainer) -> dict[str, Any]:
    """The hyper-parameters of a run, as JSON holds them."""
    job, layout = trainer.job, trainer.addressing.layout if trainer.addressing is not None else None
    of_data = layout if isinstance(layout, Layout) else None
    values = {
        "preset": dataclasses.asdict(job.preset),
        "memory": "none" if layout is None else layout.name,
        "slots": of_data.slots if of_data else None,
        "table_params": of_data.table_params if of_data else None,
        "row_count": layout.row_count if layout else None,
        "row_width": layout.row_width if layout else None,
        "gate": job.gate,
        "seed": job.seed,
        "hash_seed": job.hash_seed,
        "steps": job.step_count,
        "table_decay": job.table_decay,
        "bias_correction": job.bias_correction,
        "stream_sha256": trainer.stream.sha256,
        "validation_sha256": trainer.validation.sha256,
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))  # tuples become lists, as they will be when read back
    return plain


def _layout_text(layout: Layout | OwnRows | None) -> str | None:
    """What rebuilds the layout; None without a table, and for a layout of one's own, which no text rebuilds."""
    if not isinstance(layout, Layout):
        return None
    try:
        return layout_to_json(layout)
    except ValueError:
        return None


def _spec_out(spec: StreamSpec, stream: Stream) -> dict[str, Any]:
    """A stream's place and digest; of one that ships, the name alone, so that the checkpoint can move."""
    fields = dataclasses.asdict(spec) | {"sha256": stream.sha256}
    if spec.path is not None and (name := _shipped_name(spec.path)) is not None:
        fields["path"] = name
    return fields


def _shipped_name(path: str) -> str | None:
    name = os.path.basename(path)
    try:
        return name if os.path.realpath(path) == os.path.realpath(shipped_path(name)) else None
    except FileNotFoundError:
        return None


def _spec_in(config: dict[str, Any], name: str, path: str) -> StreamSpec:
    """The stream of a checkpoint, with the place on this machine of one that ships; FormatError."""
    try:
        spec = StreamSpec(**config[name])
        for key, value in vars(spec).items():
            kinds = (int, _NONE) if key in ("eod", "vocabulary", "limit") else (str, _NONE)
            if type(value) not in ((bool,) if key == "requests" else kinds):
                raise TypeError(f"its {key} is {shown(value)}")
        if spec.path is not None and not os.path.exists(spec.path) and os.path.basename(spec.path) == spec.path:
            with contextlib.suppress(FileNotFoundError):
                spec = dataclasses.replace(spec, path=str(shipped_path(spec.path)))
        return spec
    except TypeError as error:
        raise FormatError(f"{path}: its {name} stream cannot be read ({error})") from None


def save(trainer: Trainer, path: str) -> None:
    """Write a run's checkpoint."""
    model, table = trainer.model, trainer.table
    layout = trainer.addressing.layout if trainer.addressing is not None else None
    config = {
        "kind": "checkpoint",
        "schema": SCHEMA,
        **settings_of(trainer),
        "layout": _layout_text(layout),
        "stream": _spec_out(trainer.job.stream, trainer.stream),
        "validation": _spec_out(trainer.job.validation, trainer.validation),
        "state": {"step": trainer.step, **dataclasses.asdict(trainer.series)},
        **provenance(),
    }
    optimizer = {}
    for name, parameter in model.named_parameters():
        for key, value in trainer.adamw.state[parameter].items():
            optimizer[f"adamw.{name}.{key}"] = value
    tensors = {MODEL: dict(model.named_parameters()), OPTIMIZER: optimizer}
    if table is not None:
        tensors[TABLE] = {"rows": table.settled(trainer.step)}
        optimizer |= {f"table.{key}": value for key, value in table.state().items()}
    write_folder(path, config, tensors)


def restore(trainer: Trainer, path: str) -> None:
    """Bring a new Trainer to where a checkpoint's was. ValueError names the hyper-parameter that is another."""
    config, settings = read_config(path), settings_of(trainer)
    for name in _SETTINGS:
        if config[name] != settings[name]:
            raise ValueError(_difference(path, name, config[name], settings[name]))
    shapes = {name: tuple(parameter.shape) for name, parameter in trainer.model.named_parameters()}
    weights = read_tensors(path, MODEL, shapes)
    optimizer = read_tensors(path, OPTIMIZER)
    try:
        for name, parameter in trainer.model.named_parameters():
            with torch.no_grad():
                parameter.copy_(weights[name])
            prefix = f"adamw.{name}."
            state = {key.removeprefix(prefix): value for key, value in optimizer.items() if key.startswith(prefix)}
            for key, value in state.items():  # AdamW counts its steps on the CPU
                trainer.adamw.state[parameter][key] = value if key == "step" else value.to(parameter.device)
        if trainer.table is not None:
            rows = read_tensors(path, TABLE, {"rows": tuple(trainer.table.weight.shape)})["rows"]
            own = {key.removeprefix("table."): value for key, value in optimizer.items() if key.startswith("table.")}
            trainer.table.load(rows, own)
        progress: dict[str, Any] = dict(config["state"])
        trainer.step = progress.pop("step")
        trainer.series = _series_like(trainer.series, progress)
    except (KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise FormatError(f"{path}: not a whole checkpoint ({' '.join(str(error).split())})") from None


def _series_like(series: Any, values: dict[str, Any]) -> Any:
    """A series of these values; TypeError unless all are there, of the types in ``series``, and its lists agree."""
    if missing := vars(series).keys() - values.keys():
        raise TypeError(f"its state has no {min(missing)}")
    made = type(series)(**values)
    lists = [value for value in vars(made).values() if type(value) is list]
    if any(type(value) is not type(vars(series)[name]) for name, value in vars(made).items()):
        raise TypeError("its state holds a value of another type")
    numbers = all(type(value) in (int, float) for values in lists for value in values)
    if not numbers or len({len(values) for values in lists}) != 1:
        raise TypeError("the lists in its state are not as many numbers each")
    return made


def _difference(path: str, name: str, there: Any, here: Any) -> str:
    if isinstance(there, dict) and isinstance(here, dict):  # a preset: name the field
        field = next(key for key in [*here, *there] if there.get(key) != here.get(key))
        name, there, here = f"{name} {field}", there.get(field), here.get(field)
    return f"{path} was made with {name.replace('_', ' ')} {there}, and this run has {here}; it cannot go on with it"


# ---- reading without training --------------------------------------------------------------------


def preset_in(config: dict[str, Any], path: str) -> Preset:
    """The preset of a checkpoint; FormatError, also for one whose model is larger than the file of its weights."""
    try:
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in config["preset"].items()}
        preset = Preset(**values)
        _check_preset(preset)
        dense = preset.dim * (2 * preset.vocabulary + 12 * preset.layers * preset.dim)  # without norms and memory
        if 4 * dense > os.path.getsize(os.path.join(path, MODEL)):  # or making it could take any amount of memory
            raise ValueError(f"a model of {dense:,} parameters is not in {MODEL}")
        return preset
    except FileNotFoundError:
        raise FormatError(f"{path}: not a whole checkpoint: it has no {MODEL}") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise FormatError(f"{path}: its preset cannot be read ({error})") from None


def _check_preset(preset: Preset) -> None:
    """TypeError or ValueError unless each field is as the presets of this program have it."""
    for name, like in vars(PRESETS["mini"]).items():
        value = getattr(preset, name)
        kinds = (int, float) if type(like) is float else (type(like),)
        if type(value) not in (*kinds, *((_NONE,) if type(like) is str else ())):
            raise TypeError(f"its {name} is {shown(value)}")
        limit = CONTEXT_MAX if name == "context" else PRESET_MAX
        if type(like) is int and not is_whole(value, limit):
            raise ValueError(f"its {name} is {shown(value)}, not a whole number up to {limit}")
    if not all(is_whole(item, PRESET_MAX) for item in (*preset.orders, *preset.memory_layers)):
        raise TypeError("its orders or memory layers are not whole numbers")


def validation_in(config: dict[str, Any], path: str) -> StreamSpec:
    """The held-out stream of a checkpoint; FormatError."""
    return _spec_in(config, "validation", path)


def job_in(config: dict[str, Any], path: str) -> TrainJob:
    """The job that made a checkpoint. ValueError for a layout of one's own, which its file cannot say."""
    if config["layout"] is None and config["memory"] != "none":
        raise ValueError(f"{path} has a layout of one's own, {config['memory']}; go on with it from Python")
    job = TrainJob(
        preset_in(config, path),
        _spec_in(config, "stream", path),
        validation_in(config, path),
        memory=config["memory"],
        slots=config["slots"],
        table_params=config["table_params"],
        gate=config["gate"],
        seed=config["seed"],
        hash_seed=config["hash_seed"],
        steps=config["steps"],
        table_decay=config["table_decay"],
        bias_correction=config["bias_correction"],
        out=path,
        resume=True,
    )
    layout = job.layout()
    if config["row_count"] != (layout.row_count if layout is not None else None):  # before room is made for a table
        raise FormatError(f"{path}: it says {config['row_count']} rows, and its layout has others")
    return job


@dataclass(frozen=True)
class Loaded:
    """A trained model, where its table's rows lie, and the rows, FP32 [row_count, row_width]; None without a table."""

    config: dict[str, Any]
    model: Decoder
    addressing: Addressing | None
    rows: Tensor | None


def load(path: str, *, device: str = "cpu", own: Layout | OwnRows | None = None, with_rows: bool = True) -> Loaded:
    """The model of a checkpoint. ``own`` is the layout of one's own that it was trained with, if so.

    with_rows: without, rows is None and the table's file need not be there: a packed table has them.
    """
    config = read_config(path)
    preset = preset_in(config, path)
    layout = _layout_in(config, path, own)
    addressing = None if layout is None else Addressing(layout, device)
    unused = torch.Generator()  # every weight is replaced
    memory = None if addressing is None else Memory(preset, addressing, unused, gate=config["gate"])
    model = Decoder(preset, unused, memory)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    model.load_state_dict(read_tensors(path, MODEL, shapes))
    rows = None
    if layout is not None and with_rows:
        rows = read_tensors(path, TABLE, {"rows": (layout.row_count, layout.row_width)})["rows"].to(device)
    return Loaded(config, model.to(device), addressing, rows)


def _layout_in(config: dict[str, Any], path: str, own: Layout | OwnRows | None) -> Layout | OwnRows | None:
    if own is not None:
        if [own.name, own.row_count, own.row_width] != [config["memory"], config["row_count"], config["row_width"]]:
            raise ValueError(f"{path} was trained with the layout {config['memory']}, not with this {own.name}")
        return own
    if config["memory"] == "none":
        return None
    if config["layout"] is None:
        raise ValueError(f"{path} has a layout of one's own, {config['memory']}; load it from Python, with that layout")
    try:
        return layout_from_json(config["layout"])
    except (TypeError, ValueError) as error:
        raise FormatError(f"{path}: {error}") from None
