"""Names of modules in a family, and the places of a checkpoint's tensors that they lead to. Knows no torch.

A family says which of its modules is which of ours; shapes, biases and what is absent follow from the spec.
Besides the modules of `weights`, a name on our side may be a part of one:

    query, key, value         rows of `qkv`           qkv_by_head     all of `qkv`, interleaved by head
    gate, up                  rows of `gate_up`, if gated
    expert_gate, expert_up    rows of one expert in `expert_gate_up`
    expert_gate_and_up        all of them, a row of gate and one of up in turn
    shared_gate, shared_up    rows of `shared_gate_up`

Where tokens attend to the rows of an encoder, there are besides:

    encoder_key, encoder_value    rows of `encoder_kv`

Where keys and values are made of latents, there are, in place of `qkv`:

    query_from_stream         all of `query`, where queries are made of the layer's input
    query_from_latent         all of `query`, where they are made of the latent that `query_latent` makes
    latent                    rows of the latent of keys and values, then of the key that is turned
    heads                     rows of each head's key, then of its value, made of the latent

Where a layer is a gated DeltaNet, there are `delta_qkvz` and `delta_ba`, by key head, or rows of these:

    delta_qkv, delta_z        of `delta_qkvz`         delta_b, delta_a    of `delta_ba`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pageant.models.spec import DecoderSpec
from pageant.models.weights import Part, Place, Places, Shapes, layer_parts, layer_shapes, model_shapes

__all__ = ["Names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A family's modules by their names in a checkpoint, each with what it is here.

    Modules that a model does not have (a head tied to the embedding, say) are left out of its places.
    """

    model: Mapping[str, str]
    """Modules outside the layers."""
    layer: Mapping[str, str]
    """Modules of a layer, without its prefix. "{expert}" stands for the number of an expert. "a or b" is the one of
    both that a layer has."""
    layer_prefix: str = "model.layers.{layer}."
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """Other ways in which some checkpoints begin a name, each with the way that is used here."""
    endings: Mapping[str, str] = field(default_factory=dict)
    """Other ways in which some checkpoints end a name, each with the way that is used here."""
    ignored: tuple[str, ...] = ()
    """How the names of superfluous tensors end: constants that older exports saved among the weights."""
    ignored_modules: tuple[str, ...] = ()
    """How the canonical names of superfluous tensors begin: heads that are not used."""
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Ways in which names of tensors end that hold all experts of a layer, [experts, ...], each with the way in which
    the name of one expert's part ends: with "{expert}" for its number."""
    ignores_later_layers: bool = False
    """Whether layers behind the last that the configuration counts are superfluous: heads that draft (MTP)."""
    transposed: bool = False
    """Whether the layers' matrices are saved as [in, out]."""
    transposed_experts: bool = False
    """Whether those of experts are."""
    rotates_pairs: bool = False
    """Whether rows of queries and keys are saved so that those which are turned together are neighbours."""
    without_bias: tuple[str, ...] = ()
    """Parts that a checkpoint has no biases of, where the other parts of their module have some: theirs are zero."""
    norm_offset: float = 0.0
    """What the family adds to the weights of its norms when it uses them."""

    def canonical(self, name: str) -> str:
        """Return a tensor's name as it is used here."""
        for theirs, ours in self.endings.items():
            if name.endswith(theirs):
                name = name.removesuffix(theirs) + ours
        for theirs, ours in self.prefixes.items():
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name

    def is_ignored(self, name: str, num_layers: int) -> bool:
        """Tell whether a tensor of a checkpoint of so many layers is superfluous. name: a canonical one."""
        return (
            name.endswith(self.ignored)
            or name.startswith(self.ignored_modules)
            or self.only_drafts(name, num_layers)
        )

    def only_drafts(self, name: str, num_layers: int) -> bool:
        """Tell whether a tensor is of a layer behind the last that counts. name: a canonical one."""
        prefix, _, suffix = self.layer_prefix.partition("{layer}")
        if not self.ignores_later_layers or not name.startswith(prefix):
            return False
        number = name.removeprefix(prefix).partition(suffix)[0]
        return number.isdecimal() and int(number) >= num_layers

    def part_of_stack(self, name: str) -> str | None:
        """Return the name of one expert's part of a stack, with "{expert}" for its number; None: it is no stack.

        name: a canonical one.
        """
        for stack, part in self.stacks.items():
            if name.endswith(stack):
                return name.removesuffix(stack) + part
        return None

    def without_prefix(self) -> Names:
        """Return the same for checkpoints of the model alone, which leave out the prefix that one with a head has."""
        prefix = self.layer_prefix.partition(".")[0] + "."
        modules = (*(f"{name}." for name in self.model), self.layer_prefix.partition("{")[0])
        bare = {name.removeprefix(prefix): name for name in modules if name.startswith(prefix)}
        return replace(self, prefixes={**bare, **self.prefixes}, ignored_modules=("lm_head.", "score."))

    def places(self, spec: DecoderSpec) -> Places:
        """Return where each tensor of a checkpoint goes, by its canonical name."""
        places = dict(self._modules(self.model, model_shapes(spec), {}, None))
        for number, layer in enumerate(spec.layers):
            prefix = self.layer_prefix.format(layer=number)
            modules = self._modules(self.layer, layer_shapes(spec, layer), layer_parts(spec, layer), number)
            places |= {prefix + name: place for name, place in modules}
        return places

    def _modules(
        self, names: Mapping[str, str], shapes: Shapes, parts: Mapping[str, Part], layer: int | None
    ) -> Iterator[tuple[str, Place]]:
        pairs = [(theirs, one) for theirs, ours in names.items() for one in ours.split(" or ")]
        for theirs, ours in pairs:
            part = parts.get(ours)
            for suffix in ("weight",) if ours in self.without_bias else ("weight", "bias"):
                name = f"{part.module if part else ours}.{suffix}"
                if name in shapes:
                    yield from self._places(f"{theirs}.{suffix}", name, shapes[name], part, layer)

    def _places(
        self, theirs: str, name: str, shape: tuple[int, ...], part: Part | None, layer: int | None
    ) -> Iterator[tuple[str, Place]]:
        """Places of one tensor: one, or one for each expert of a stack [E, rows, columns]."""
        experts: Iterable[int | None] = (None,)
        if "{expert}" in theirs:
            experts, shape = range(shape[0]), shape[1:]
        if part is not None:
            shape = (part.rows, *shape[1:])
        is_transposed = self.transposed or (self.transposed_experts and "{expert}" in theirs)
        transposed = is_transposed and layer is not None and len(shape) == 2
        paired_heads = None
        if part is not None:
            paired_heads = part.paired_heads or (part.heads if self.rotates_pairs else None)
        for expert in experts:
            yield (
                theirs.format(expert=expert),
                Place(
                    name=name,
                    layer=layer,
                    shape=shape[::-1] if transposed else shape,
                    row=part.row if part is not None else 0,
                    expert=expert,
                    transposed=transposed,
                    interleaved_heads=part.interleaved_heads if part is not None else None,
                    paired_heads=paired_heads,
                    paired_from=part.paired_from if part is not None else 0,
                    plus=self.norm_offset if name.endswith("norm.weight") else 0.0,
                ),
            )
