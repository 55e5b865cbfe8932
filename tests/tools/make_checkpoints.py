"""Random checkpoints of every Gemma 4 variant, each with what Hugging Face transformers says of it.

usage: make_checkpoints.py FOLDER [--seed N] [--variant NAME ...] [--set key=value ...]

Needs torch and transformers 5.17.  Below FOLDER comes a folder per variant, laid out as save_pretrained
does it, with what tests/testlib/golden.h describes: golden.safetensors (an fp32 run at its 16 best
tokens, two bf16 runs at the same tokens, greedy continuations and what the bf16 runs pick behind the
same tokens) and reference-noise.json (how far the bf16 runs are from the fp32 one).  Tests take the
folder: `reference_test --checkpoints FOLDER`.

A tensor's values depend on the seed, the variant and the tensor's name alone.
"""

import argparse
import dataclasses
import hashlib
import json
import logging
import math
import pathlib
import sys
import time

import torch
from safetensors.torch import save_file
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.gemma4_unified import (Gemma4UnifiedConfig,
                                                Gemma4UnifiedForConditionalGeneration,
                                                Gemma4UnifiedTextConfig)
from transformers.utils.logging import disable_progress_bar

BEST = 16  # tokens per position
NEW_TOKENS = 48  # of a greedy continuation
RUNS = {"bf16_eager": "eager", "bf16_sdpa": "sdpa"}

SLIDING, FULL = "sliding_attention", "full_attention"

SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "sliding_window": 64,
    "max_position_embeddings": 4096,
    "final_logit_softcapping": 30.0,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
PLAIN = {"hidden_size_per_layer_input": 0}


@dataclasses.dataclass
class Variant:
    """A kind of checkpoint: how its config differs from SMALL, and what is asked of it."""
    changes: dict
    unified: bool = False  # the 12B's wrapper, whose other towers a text server leaves alone
    shard_size: str = "5GB"
    prompts: tuple = (1, 2, 9, 31, 63, 64, 65, 66, 130, 300, 700)
    continued: tuple = (2, 9, 31, 63, 65, 66, 130, 300)
    whole: tuple = (1, 9, 130)  # prompts with all logprobs of every position


VARIANTS = {
    "dense-unified": Variant({}, unified=True),
    "dense-sharded": Variant(PLAIN | {"num_key_value_heads": 4, "num_global_key_value_heads": 2},
                             shard_size="700KB"),
    "dense-window1024": Variant(
        PLAIN | {"sliding_window": 1024, "num_hidden_layers": 4,
                 "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
        prompts=(9, 1023, 1024, 1025, 1600), continued=(9, 1024), whole=(9,)),
    "moe": Variant(PLAIN | {"num_global_key_value_heads": 2, "enable_moe_block": True,
                            "num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 64}),
    "ple-shared": Variant({"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 512,
                           "attention_k_eq_v": False, "num_key_value_heads": 1,
                           "num_global_key_value_heads": None, "num_kv_shared_layers": 4,
                           "use_double_wide_mlp": True, "num_hidden_layers": 8,
                           "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 2}),
}

# The first row whose key is part of a tensor's name: values are uniform between two bounds, or normal
# with a sigma, which "fan" divides by the root of the input's width.  Chosen so that logits spread over
# some units, and attention and routing are neither even nor all on one.
FILLS = (
    ("layer_scalar", "uniform", 0.6, 1.0),
    ("q_norm", "uniform", 0.15, 0.45),
    ("k_norm", "uniform", 0.15, 0.45),
    ("per_expert_scale", "uniform", 0.5, 1.5),
    ("router.scale", "uniform", 4.0, 10.0),
    ("router.proj", "fan", 10.0, None),
    ("final norm", "uniform", 2.0, 5.0),
    ("norm", "uniform", 0.5, 1.5),
    ("embed_tokens", "normal", 0.15, None),
    ("lm_head", "normal", 0.15, None),
    ("", "fan", 1.2, None),
)


def generator(*key):
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def values(name, shape, source):
    if name.endswith(("model.norm.weight", "language_model.norm.weight")):
        name = "final norm"
    _, kind, first, second = next(row for row in FILLS if row[0] in name)
    if kind == "uniform":
        return torch.rand(shape, generator=source) * (second - first) + first
    if kind == "fan":
        first /= math.sqrt(shape[-1])
    return torch.randn(shape, generator=source) * first


def build(variant, overrides):
    """A model in fp32 whose weights are not set yet."""
    settings = {**SMALL, **variant.changes, **overrides}
    if not variant.unified:
        return Gemma4ForCausalLM(Gemma4TextConfig(**settings))
    width = settings["hidden_size"]
    return Gemma4UnifiedForConditionalGeneration(Gemma4UnifiedConfig(
        text_config=Gemma4UnifiedTextConfig(**settings),
        vision_config={"mm_embed_dim": width, "mm_posemb_size": 8, "output_proj_dims": width,
                       "patch_size": 2},
        audio_config={"audio_embed_dim": 16}))


def write_checkpoint(folder, name, variant, options):
    """Every value is one that bf16 holds, so that fp32 and bf16 runs have the same weights."""
    model = build(variant, dict(options.set))
    for tensor_name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            source = generator(options.seed, name, tensor_name)
            tensor.copy_(values(tensor_name, tuple(tensor.shape), source).to(torch.bfloat16))
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=variant.shard_size)


def load(folder, variant, dtype, attention, device):
    kind = Gemma4UnifiedForConditionalGeneration if variant.unified else Gemma4ForCausalLM
    return kind.from_pretrained(folder, dtype=dtype, attn_implementation=attention,
                                experts_implementation="eager").to(device).eval()


def logprobs(model, ids):
    return model(input_ids=ids[None]).logits[0].float().log_softmax(-1)


def continue_greedily(model, ids):
    """Tokens, and how far the best lies before the second.  Without a cache: the same arithmetic as a
    prompt's."""
    tokens, margins = [], []
    for _ in range(NEW_TOKENS):
        best = logprobs(model, ids)[-1].topk(2)
        ids = torch.cat([ids, best.indices[:1]])
        tokens.append(best.indices[0])
        margins.append(best.values[0] - best.values[1])
    return torch.stack(tokens).int(), torch.stack(margins)


class Noise:
    """How far a bf16 run is from the truth, prompt by prompt."""

    def __init__(self):
        self.most, self.means, self.agreed, self.positions = 0.0, [], 0, 0

    def add(self, found, truth_best, at_best):
        distance = (at_best - truth_best.values).abs()
        self.most = max(self.most, distance.max().item())
        self.means.append(distance.mean().item())
        self.agreed += (found.argmax(-1) == truth_best.indices[:, 0]).sum().item()
        self.positions += len(found)

    def summary(self):
        return {"max": self.most, "mean": sum(self.means) / len(self.means),
                "top1": self.agreed / self.positions}


def refer(folder, name, variant, options):
    """golden.safetensors' tensors and reference-noise.json's object."""
    truth = load(folder, variant, torch.float32, "eager", options.device)
    runs = {run: load(folder, variant, torch.bfloat16, attention, options.device)
            for run, attention in RUNS.items()}
    noise = {run: Noise() for run in RUNS}
    vocab = truth.config.get_text_config().vocab_size
    tensors, greedy = {}, {}
    for count in options.prompts or variant.prompts:
        ids = torch.randint(3, vocab, (count,), generator=generator(options.seed, name, count))
        ids[0] = 2
        ids = ids.to(options.device)
        wanted = logprobs(truth, ids)
        best = wanted.topk(BEST, -1)
        tensors |= {f"case{count}.ids": ids.int(), f"case{count}.top_ids": best.indices.int(),
                    f"case{count}.top_logprobs": best.values}
        if count in variant.whole:
            tensors[f"case{count}.full_logprobs"] = wanted
        for run, model in runs.items():
            found = logprobs(model, ids)
            at_best = found.gather(-1, best.indices)
            noise[run].add(found, best, at_best)
            tensors[f"case{count}.{run}_logprobs_at_top_ids"] = at_best
        if count in variant.continued:
            tokens, margins = continue_greedily(truth, ids)
            tensors |= {f"greedy{count}.tokens": tokens, f"greedy{count}.margins": margins}
            for run, model in runs.items():
                forced = torch.cat([ids, tokens[:-1].long()])
                picked = logprobs(model, forced)[count - 1:].argmax(-1)
                tensors[f"greedy{count}.{run}_tokens"] = picked.int()
            greedy[count] = {"least_margin": margins.min().item(),
                             "distinct": len(set(tokens.tolist()))}
    figures = {run: noise[run].summary() for run in RUNS}
    figures |= {"top1_weighs_positions": True, "greedy": greedy, "seed": options.seed}
    return {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}, figures


def make(name, options):
    variant = VARIANTS[name]
    folder = options.folder / name
    write_checkpoint(folder, name, variant, options)
    tensors, figures = refer(folder, name, variant, options)
    save_file(tensors, folder / "golden.safetensors")
    (folder / "reference-noise.json").write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def setting(text):
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}': want key=value, the value as JSON") from None


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    parser.add_argument("--set", action="append", type=setting, default=[], metavar="KEY=VALUE",
                        help="of the text config, as hidden_size=128")
    parser.add_argument("--prompts", type=lambda text: tuple(map(int, text.split(","))),
                        help="prompt lengths instead of the variant's, as 9,64,130")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


@torch.no_grad()
def main():
    options = parse()
    logging.disable(logging.WARNING)  # transformers tells of tokens and towers that are not used
    disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = False  # the truth is fp32
    torch.backends.cudnn.allow_tf32 = False
    for name in options.variant or VARIANTS:
        start = time.monotonic()
        figures = make(name, options)
        told = " ".join(f"{run}: mean {figures[run]['mean']:.4f} max {figures[run]['max']:.3f} "
                        f"agrees {figures[run]['top1']:.4f}" for run in RUNS)
        print(f"{name:18} seed {options.seed} {time.monotonic() - start:5.1f} s  {told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
