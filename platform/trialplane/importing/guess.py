"""Guesses about a script: the arguments that may be worth a search, with their ranges, and the metric to optimize.

The guesses depend only on the words in the names of arguments and metrics, on defaults and on choices.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from trialplane.importing import search
from trialplane.wire.declared import Option


def _word_set(words: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(words.split())


_FRACTION = re.compile(r"\.\d++(?![\w.]|\s*[:=]|\s+[-+.\d])")  # not of `mAP0.5: 0.6` and `loss0.5.pt`
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # num, GPU, Layers and 2 of `numGPULayers2`
_ABBREVIATED = re.compile(r"mAP|m?IoU")  # words that `_WORDS` would split at their capital letters
# Sizes of a model whose names are written as one word, as `nhid`, `netwidth` and `ksize`: a prefix and a known word.
_SIZE = r"hid|hidden|layers?|levels?|heads?|width|depth|embd?|units|filters|channels|blocks|factors?|neurons"
_COMPOUND = re.compile(rf"(?:net|num|n)({_SIZE})|p(drop(?:out)?)|k(?:ernel)?size|em(?:bed|b)?size|batchsize|bsz?")
_OF_MODEL = re.compile(r"(?<![^\W_])d_(model|ff|ffn|inner|hid|hidden|state|emb|embed)(?![^\W_])")  # sizes of a transformer
_NUMBERED = re.compile(r"(?<![^\W_])(l1|l2|f1|r2|top1)(?![^\W_])")  # words that `_WORDS` would split before the digit
# Words of arguments that do not affect what a script learns, but where and how it runs, for how long, and what it prints.
_NO_SEARCH = _word_set(
    "seed device devices cuda gpu gpus cpu mps tpu xpu num_workers workers jobs threads port host rank local world backend "
    "node nodes nnodes nproc process processes nr ranks master addr address cluster machine machines slurm id ids "
    "log logs logging logger verbose verbosity quiet debug dry print display interval every freq frequency save saving "
    "checkpoint checkpoints load reload download path dir folder file files output outdir input data dataset datasets root "
    "url name project entity group tag tags wandb tensorboard mlflow tracking hub token eval evaluate test val validation "
    "predict inference only profile compile pin memory cache overwrite version config conf epoch epochs step steps "
    "iter iters iterations samples limit max min patience timeout minutes hours distributed ddp fsdp deepspeed accelerator "
    "launcher strategy precision fp16 bf16 tf32 amp half deterministic benchmark plot show report push metric metrics no "
    "disable classes labels features in out context type vocab split fold folds train language locale format mode phase "
    "stage task action command cmd image images img resolution start begin resume chunk trial trials startup"
)
# Such words that exclude an argument whatever other words its name has: `eval_batch_size`.
_NEVER_SEARCHED = _word_set("path dir file seed eval test val validation log logging save ema")
_LOGARITHMIC = _word_set("lr lrate learningrate eta learning wd decay reg regularization l1 l2 lambda alpha sigma c")
_DECAYS = _word_set("weight wd l2")
_SCHEDULED = _word_set(
    "min max warmup final end noise cycle decay mul pct std limit steps sched scheduler schedule k t power step size"
)
_SHARES = _word_set("dropout drop momentum smoothing prob probability p ratio fraction rate subsample")
_SIZES = _word_set(
    "batch hidden hid width dim dims embed embedding embd emb units channels filters features neurons ngf ndf ff ffn "
    "latent bottleneck mlp rnn lstm gru projection proj leaves estimators est trees"
)
_TREES = _word_set("depth leaf")  # also of `max_depth`, `min_samples_leaf`
# Words of sizes that both data and layers have. The words in `_OF_DATA` tell them apart, and `n_features` is one of data.
_SHARED_SIZES = _word_set("dim dims width channels features units neurons")
_OF_DATA = _word_set(
    "input output in out classes labels label vocab image img frame data dataset obs observation state action target x y"
)
_COUNTS = _word_set(
    "layers layer depth heads head blocks levels neighbors stages hops leaf degree kernel ng negatives negative multires"
)
_FACTORS = _word_set("factor factors")  # of a matrix: `factor_num`, and not the `factor` by which a learning rate decreases
_MOST_SAMPLES = 256  # of one item, as along a ray; a larger number of samples is that of the data
# Arguments that name a part of the method. Their values are searched if the script lists them.
_PARTS = _word_set("optimizer optim opt activation act nonlinearity scheduler sched norm normalization init loss criterion")
# Words of switches that are searched.
_SWITCHES = _word_set(
    "nesterov augment augmentation amsgrad bias batchnorm bn norm residual bidirectional tie tied shuffle mixup cutmix "
    "warmup pretrained freeze balanced bootstrap scale normalize whiten"
)

# Kind of an argument that needs a value and has no default → known words of its name, and a value. The first match counts.
_VALUES: Mapping[str, Sequence[tuple[frozenset[str], Any]]] = {
    "float": (
        (_word_set("lr lrate learningrate learning eta step"), 0.01),
        (_word_set("momentum"), 0.9),
        (_SHARES, 0.1),
        (_DECAYS - {"l2"}, 1e-4),
        (_LOGARITHMIC, 0.1),
    ),
    "int": (
        (_word_set("seed"), 0),
        (_word_set("workers jobs threads"), 1),
        (_word_set("epoch epochs step steps iter iters iterations rounds episodes"), 3),
        (_COUNTS, 2),
        (_SIZES, 32),
    ),
}
# The same for arguments of other kinds.
_TEXTS = (
    (
        _word_set("out output outdir save savedir log logs logdir workdir work checkpoint checkpoints ckpt result results"),
        "out",
    ),
    (_word_set("name exp experiment run project tag"), "trial"),
)
# Words of arguments of these kinds that name data.
_DATA = _word_set("data dataset input train file path csv tsv root corpus text filename datafile infile")

_LOSSES = _word_set(
    "loss error err mae mse rmse mape smape rmsle nll ce bce perplexity ppl wer cer fid bpc bpb kl regret cost latency "
    "distance logloss deviance energy brier nmse nrmse wape eer chamfer residual"
)
_NORMS = _word_set("l1 l2 huber quantile poisson")  # LightGBM's names of losses, which arguments have, too
_SCORES = _word_set(
    "accuracy acc f1 auc auroc score bleu rouge map iou miou dice precision recall r2 reward rew return psnr ssim ndcg mrr "
    "em exact top1 elo kappa mcc objective quality fitness likelihood elbo silhouette ari nmi jaccard correlation spearman "
    "pearson concordance sharpe ap auprc gini hits hit success win"
)
# Words of durations, speeds and counters, as in `Sample (seconds)`, `it/s` and `time_elapsed`.
_COSTS = _word_set(
    "time times dur duration second seconds sec secs ms minute hour elapsed remaining runtime eta it batch batches sample "
    "samples fps sps qps throughput speed total eps memory mem"
)
_REWARDS, _ACCURACIES = _word_set("reward rew return"), _word_set("accuracy acc")
_STATISTICS = _word_set("min max mean std median")
_AVERAGES = _word_set("average avg mean")
_METRIC = re.compile(
    r"((?i:train|training|val|valid|validation|test|testing|eval|evaluation|dev|development)(?:(?:_\d+)?'s )?"
    r"(?:[ _-]|/(?![^\W\d]\w* [^\W\d]))?)?\b([^\W\d][\w@-]*)"  # `valid/loss 2`, but of `train/val loss` only `val loss`
)
_QUALIFIER = re.compile(r"(?<![^\W\d])([^\W\d]\w*)[ _-]+$")  # the word before a name: `Average ` before `reward`
_LONGEST_QUALIFIER = 60  # characters before a name that are read, because a line of output may have any length
# Options that name the metric by which a script chooses its best model, and whether it is minimized.
_MONITORS = ("monitor", "monitor_metric", "monitored_metric", "metric_for_best_model")
_MODES = ("mode", "monitor_mode")
_MONITORED = re.compile(r"(?:(min|max)\w*\s+)?([A-Za-z][\w./@-]*)")  # val_loss, minimize val/loss
# The number of steps or epochs of a run, as `_duration_key` writes it: numtrainepochs, maxsteps, niters.
_DURATION = re.compile(
    r"(?:n|nb|no|num|number|of|max|maximum|total|train|training|boost|boosting)*"
    r"(?:epoch|step|timestep|update|iter|iteration|round|episode|generation|pass|passe|estimator|tree)s?"
)
_PLAIN_STEPS = re.compile(r"(?:n|nb|no|num|number|of)*(?:time)?steps?")  # numsteps, and not maxsteps
_EPOCHS = re.compile(r"(?:n|nb|no|num|number|of)*epochs?")  # nepochs, and not maxepochs
# Options of reinforcement learning, where epochs are passes over a rollout, and of diffusion, where timesteps are those of
# one sample.
_OF_ROLLOUTS = re.compile(r"(?:use)?gae(?:lambda|gamma)?|lambdagae|totaltimesteps|(?:num|n)updates")
_OF_PPO = re.compile(r"clip(?:coef|eps|epsilon|param|range|ratio)")  # also of gradients; without another duration not of PPO
_OF_DIFFUSION = re.compile(r"\w*(?:diffusion|ddim|ddpm|unet|noise(?:schedule|steps))\w*|beta(?:start|min|0|schedule)")
# Words of the data on which a metric is measured.
_VALIDATION = _word_set("val valid validation validate eval evaluation evaluate dev development")
_HELD_OUT = _VALIDATION | {"test", "testing"}
_TRAINING = _word_set("train training")


@dataclasses.dataclass(frozen=True)
class Monitored:
    """The metric by which a script chooses its best model.

    Attributes:
        option: Name of the option that names the metric.
        metric: Name of the metric.
        direction: `maximize` or `minimize`.
    """

    option: str
    metric: str
    direction: str


class Guess(NamedTuple):
    """A parameter that may be worth a search.

    Attributes:
        fields: Its fields in `space` of a job.
        reason: Reason for its range, for users; "" if the user gave the range.
    """

    fields: dict[str, Any]
    reason: str


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case: weight and decay for `--weightDecay`, `weight_decay` and `weight-decay`."""
    name = _ABBREVIATED.sub(lambda match: match[0].lower(), name)
    name = _OF_MODEL.sub("dim", name)
    words = [*_NUMBERED.findall(name.lower()), *(word.lower() for word in _WORDS.findall(name))]
    return {_whole_word(word) for word in words}


def _whole_word(word: str) -> str:
    """Return the word that a compound means: `hid` for `nhid`, `drop` for `pdrop`; any other word unchanged."""
    match = _COMPOUND.fullmatch(word)
    if match is None:
        return word
    known_word = match[1] or match[2]  # of `nhid` and `pdrop`; the others are `ksize`, `embsize`, `batchsize` and `bs`
    return known_word or {"k": "kernel", "e": "embed", "b": "batch"}[word[0]]


def space(options: Sequence[Option]) -> dict[str, Guess]:
    """Return the parameters that may be worth a search, by name, the likeliest first; of equal ones, those with few words.

    Parameters that are equal in both stay in the script's order.
    """
    options = [option for option in options if not option.on_request]
    ordered = sorted(options, key=lambda option: (_rank(option), len(_words(option.name))))
    return {option.name: guess for option in ordered if (guess := parameter(option)) is not None}


def on_request(options: Sequence[Option]) -> dict[str, Guess]:
    """Return the parameters that may be worth a search and need a request, by name; see `Option.on_request`."""
    return space([dataclasses.replace(option, on_request=False) for option in options if option.on_request])


def without_variants(names: Collection[str]) -> list[str]:
    """Return the names of parameters without variants of others, as `netwidth_fine` is of `netwidth`, in their order.

    A variant's name has all words of another parameter's name, which is a size or a count, and further ones.
    """
    words_by_name = {name: _words(name) for name in names}
    words_of_sizes = [words for words in words_by_name.values() if words & (_SIZES | _COUNTS)]
    variants = {name for name, words in words_by_name.items() if any(words > other_words for other_words in words_of_sizes)}
    return [name for name in names if name not in variants]


def positive_floats(options: Sequence[Option]) -> dict[str, Guess]:
    """Return parameters for the positive floats of a script, by name, for use if `space` returns none.

    A float whose name shows that it does not affect what a script learns is left out.
    """
    guesses: dict[str, Guess] = {}
    for option in options:
        words, default = _words(option.name), option.default
        # A float called `step` is the size of a step, and not a number of steps.
        is_excluded = words & (_NO_SEARCH - {"step"}) or option.choices or option.lists or option.on_request
        is_float = isinstance(default, float) or (option.kind == "float" and type(default) is int)
        if is_float and 0 < default < math.inf and not is_excluded:
            low, high = _round(default / 10), _round(default * 10)
            if default <= 1:  # it may be a share
                high = min(high, 1.0)
            reason = f"around {default:g}, which has a point"
            guesses[option.name] = Guess(search.span("float", low, high, log=True), reason)
    return guesses


def _rank(option: Option) -> int:
    """Return the rank of an option among the parameters to search; 0, for learning rates, is the first.

    Then follow regularization, batch sizes, parts and sizes of the model, others, numbers of heads, and switches.
    """
    words = _words(option.name)
    if _is_rate(words) and not words & _SCHEDULED:
        return 0
    if words & _DECAYS or words & {"dropout", "drop"}:
        return 1
    if "batch" in words:
        return 2
    if option.choices and words & _PARTS:
        return 3
    if option.kind == "bool" or option.choices:
        return 6
    if words & {"head", "heads"}:  # their number rarely matters as much as the width that they divide
        return 5
    if words & (_SIZES | _COUNTS | _FACTORS | {"momentum", "temperature"}):
        return 3
    return 4


def _is_rate(words: Set[str]) -> bool:
    """Return whether the words of a name are those of a learning rate."""
    has_two_words = "rate" in words and bool(words & {"learning", "learn"})
    return has_two_words or bool(words & {"lr", "lrate", "learningrate", "eta"})


def parameter(option: Option) -> Guess | None:
    """Return a parameter for an argument. None if the argument is not worth a search."""
    words, default = _words(option.name), option.default
    is_number_of_samples = words in ({"samples"}, {"n", "samples"}, {"num", "samples"})
    if is_number_of_samples and isinstance(default, int):
        return _around_half_and_twice(default) if 1 < default <= _MOST_SAMPLES else None
    if option.lists or _has_no_effect(option.name):
        return None
    if option.choices:
        has_few_choices = 2 <= len(option.choices) <= 10
        return Guess(search.categorical(list(option.choices)), "its choices") if has_few_choices else None
    if option.kind == "bool":
        return Guess(search.categorical([False, True]), "a switch") if words & _SWITCHES else None
    is_optional_float = option.kind == "float" and default is None and not option.required
    if is_optional_float and _is_rate(words) and not words & _SCHEDULED:
        return Guess(search.span("float", 1e-5, 1e-1, log=True), "it has no default")
    if isinstance(default, bool) or not isinstance(default, (int, float)) or not math.isfinite(default) or default < 0:
        return None
    if option.kind == "int" and isinstance(default, int):
        return _integer_range(words, default)
    return _float_range(words, float(default))


def _has_no_effect(name: str) -> bool:
    """Return whether an argument does not affect what a script learns, or must fit the data, by its name."""
    words, last_words = _words(name), _words(name.rpartition(".")[2])  # the last ones of `train.dropout` are only dropout
    is_unrelated = last_words & _NO_SEARCH and not words & (_LOGARITHMIC | _SIZES | _TREES)
    is_number_of_features = "features" in last_words and last_words & {"n", "num", "number"}
    # Such as `obs_dim`. A further word of a size, as in `obs_hidden_dim`, makes it that of a layer.
    size_words = last_words & (_SIZES | _COUNTS)
    is_shared_size = bool(size_words) and size_words <= _SHARED_SIZES
    must_fit_data = is_shared_size and (is_number_of_features or last_words & _OF_DATA)
    return bool(is_unrelated or must_fit_data or words & _NEVER_SEARCHED)


def is_searchable(option: Option) -> bool:
    """Return whether the value of an argument could affect what a script learns, by the argument's name and default."""
    is_switch = option.kind == "int" and option.default in (0, 1)  # as in `--is_training 1`
    return not (option.lists or is_switch or option.default is None or _words(option.name) & _NO_SEARCH)


def duration(searched: Collection[str], options: Sequence[Option]) -> str:
    """Return the searched argument that is the number of steps or epochs of a run, by its name: `niters`, `opt.max_steps`.

    It is "" if there is none, or if an argument that is not searched is rather the duration. In reinforcement learning
    `n_epochs` are the passes over a rollout. Beside other epochs or updates, `num_steps` is the length of a rollout, as in
    PPO, and `timesteps` that of a diffusion.
    """
    all_keys = {_duration_key(name) for name in (*searched, *(option.name for option in options))}
    has_rollouts, has_diffusion = _has_rollouts(all_keys), _has_diffusion(all_keys)
    positive = [option.name for option in options if isinstance(option.default, (int, float)) and option.default > 0]
    durations: list[str] = []
    for name in dict.fromkeys((*searched, *positive)):
        key = _duration_key(name)
        is_passes = has_rollouts and _EPOCHS.fullmatch(key)  # over one rollout
        is_of_diffusion = has_diffusion and "time" in key and _PLAIN_STEPS.fullmatch(key)
        if _DURATION.fullmatch(key) and not is_passes and not is_of_diffusion:
            durations.append(name)
    # Beside others, plain steps are the length of a rollout: `num_steps` beside `max_epochs`.
    without_plain_steps = [name for name in durations if not _PLAIN_STEPS.fullmatch(_duration_key(name))]
    return next((name for name in without_plain_steps or durations if name in searched), "")


def _has_rollouts(keys: Set[str]) -> bool:
    """Return whether the arguments with these keys are of reinforcement learning, whose epochs are passes over a rollout."""
    if "stepsperepoch" in keys:  # with it, epochs are the duration also in reinforcement learning
        return False
    has_other_duration = any(_DURATION.fullmatch(key) and not _EPOCHS.fullmatch(key) for key in keys)
    is_of_ppo = has_other_duration and any(map(_OF_PPO.fullmatch, keys))
    return is_of_ppo or any(map(_OF_ROLLOUTS.fullmatch, keys))


def _has_diffusion(keys: Set[str]) -> bool:
    """Return whether the arguments with these keys are of a diffusion, whose timesteps are those of one sample."""
    is_beta_of_adam = "beta2" in keys and keys.isdisjoint(("betat", "betaend"))
    return ("beta1" in keys and not is_beta_of_adam) or any(map(_OF_DIFFUSION.fullmatch, keys))


def _duration_key(name: str) -> str:
    """Return the last part of a name without signs, in lower case: "maxsteps" for `opt.max_steps`."""
    return re.sub(r"[\W_]", "", name.rpartition(".")[2].lower())


def with_choices(option: Option, compared: Mapping[str, Sequence[str]]) -> Option:
    """Return an option for a part of the method, such as an optimizer, with the choices that the script compares it to.

    Any other option, and one with choices of its own, is returned unchanged. For `compared`, see `Script`.
    """
    choices = tuple(compared.get(option.name.replace("-", "_"), ()))
    is_single_text = option.kind == "str" and not option.choices and not option.lists
    is_part = is_single_text and bool(_words(option.name) & _PARTS)
    return dataclasses.replace(option, choices=choices) if is_part and option.default in choices else option


def needed_value(option: Option, files: Sequence[str]) -> Any:
    """Return a value for an argument that needs one and has no default, by its name. None if no word of it is known.

    Args:
        option: The argument.
        files: Files of the script's folder that could be its data.
    """
    words = _words(option.name)
    if option.kind == "str" and _is_rate(words):  # an argument of a shell script, which has no types
        return 0.01
    names_existing_model = "model" in words and not words & {"dir", "out", "output", "save"}
    if names_existing_model:
        return None
    for known_words, known_value in _VALUES.get(option.kind, _TEXTS):
        if known_words & words:
            return known_value
    is_data = option.kind not in _VALUES and bool(words & _DATA)
    return next(iter(files), None) if is_data else None


def _integer_range(words: Set[str], default: int) -> Guess | None:
    """Return the range of an integer by the words of its name and its default. None if it is not worth a search."""
    if default < 1:
        return None
    if words & {"head", "heads"} and default % 2 == 0:  # they must divide a width, which is halved and doubled too
        choices = [default // 2, default, 2 * default]
        return Guess(search.categorical(choices), f"half of {default}, and twice that")
    has_factors = bool(words & _FACTORS) and bool(words & {"num", "n", "latent", "factors"})
    is_size = has_factors or bool(words & _SIZES)
    if not (is_size or words & _COUNTS):
        return None
    stays_even = is_size and default >= 4 and default % 2 == 0
    return _around_half_and_twice(default, step=default // 2 if stays_even else None)


def _around_half_and_twice(default: int, step: int | None = None) -> Guess:
    """Return the range of an integer from half of its default to twice that."""
    fields = search.span("int", max(1, default // 2), 2 * default, step=step)
    return Guess(fields, f"from half of {default} to twice that")


def _float_range(words: Set[str], default: float) -> Guess | None:
    """Return the range of a float by the words of its name and its default. None if it is not worth a search."""
    # Shares, which are between 0 and 1.
    if words & _SHARES and not _is_rate(words) and "decay" not in words:
        if "momentum" in words:
            return Guess(search.span("float", 0.5, 0.99), f"around {default:g}") if default < 1 else None
        low = 0.1 if words & {"fraction", "subsample"} else 0.0  # a share of data, which must not be empty
        high = 0.6 if low <= default <= 0.6 else 1.0
        return Guess(search.span("float", low, high), f"a share; {default:g} by default")
    # Others, most of which have a logarithmic range.
    is_factor = bool(words & {"gamma", "temperature", "margin"})
    is_average = "lambda" in words and 0.5 <= default <= 1  # a weight of an average, as in TD(λ): at most 1
    is_other_decay = "decay" in words and not words & _DECAYS and default >= 0.5  # of an average or a schedule
    if is_other_decay or not (is_factor or words & _LOGARITHMIC):
        return None
    if default == 0:
        fields = search.span("float", 1e-6, 1e-1, log=True)
        return Guess(fields, reason="0 by default, which a logarithmic range cannot include")
    if is_factor or is_average:
        high = 1.0 if 0.5 <= default <= 1 else _round(2 * default)
        return Guess(search.span("float", _round(default / 2), high), f"around {default:g}")
    fields = search.span("float", _round(default / 10), _round(default * 10), log=True)
    return Guess(fields, f"from a tenth of {default:g} to ten times that")


def _round(value: float) -> float:
    """Return a number rounded to three significant digits."""
    return float(f"{value:.3g}")


def objective(metrics: Mapping[str, float], expressions: Mapping[str, str] = MappingProxyType({})) -> dict[str, str] | None:
    """Return an objective among metrics that a script has printed. None if none of them is named as a loss or a score.

    The first metric with the highest `objective_rank` is the objective. Beside a loss of unnamed data, and a metric named
    only by the training data, it is one named only by held-out data, which is another measure: `Val` of
    `Loss: 0.9, Train: 0.7, Val: 0.6`. That of `Train Loss: 0.9, Val: 0.8` may be the loss.

    Args:
        metrics: The metrics.
        expressions: Metric named only by held-out data → expression in the script that is its value, as `val_rmse`.
    """
    best = max(filter(is_measure, metrics), key=objective_rank, default=None)
    if best is None:
        return None
    held_out_metric = data_alone(metrics)
    has_train_alone = any(_words(name) and _words(name) <= _TRAINING for name in metrics)
    is_loss_of_unnamed_data = bool(_words(best) & _LOSSES) and not names_data(best)
    if held_out_metric and has_train_alone and is_loss_of_unnamed_data:
        return {"metric": held_out_metric, "direction": direction(expressions.get(held_out_metric, ""))}
    return {"metric": best, "direction": direction(best)}


def monitored(options: Sequence[Option]) -> Monitored | None:
    """Return the metric that an option names for the choice of the best model, as `monitor: min val_loss`; None without one.

    The direction is in the option's value, in a `mode` beside it, or guessed from the metric's name.
    """
    texts = {option.name: option.default for option in options if isinstance(option.default, str)}
    for name, text in texts.items():
        section, dot, last_part = name.rpartition(".")
        match = _MONITORED.fullmatch(text)
        if last_part in _MONITORS and match is not None:
            mode_before_metric, metric = match.groups(default="")
            modes = [mode_before_metric, *(texts.get(f"{section}{dot}{key}", "") for key in _MODES)]
            mode = next(filter(None, modes), "")  # min, minimize, minimum …
            known_direction = {"min": "minimize", "max": "maximize"}.get(mode[:3])
            return Monitored(option=name, metric=metric, direction=known_direction or direction(metric))
    return None


class ObjectiveRank(NamedTuple):
    """The rank of a metric as an objective. The greater of two ranks is better, and the first part that differs decides.

    Attributes:
        data: 3 for a metric of validation, 2 for one of a test, 1 for one that names no data, 0 for one of training.
        kind: 2 for a score, 1 for a loss, 0 for a statistic of rewards on held-out data, such as `eval_min_reward`: it only
            shows the scale of a reward model.
        is_of_epoch: Whether it is not a value of a step.
        is_accuracy: Whether it is an accuracy.
        is_average: Whether it is an average.
        dots: Number of dots in its name, negated: `loss` is better than `encoder.loss`.
    """

    data: int
    kind: int
    is_of_epoch: bool
    is_accuracy: bool
    is_average: bool
    dots: int


def objective_rank(metric: str) -> ObjectiveRank:
    """Return the rank of a metric as an objective, by its name."""
    words = _words(metric)
    if words & _VALIDATION:
        data = 3
    elif words & _HELD_OUT:
        data = 2
    else:
        data = 0 if words & _TRAINING else 1
    if words & _HELD_OUT and words & _STATISTICS and words & _REWARDS:
        kind = 0
    elif words & _SCORES:
        kind = 2
    else:
        kind = 1
    return ObjectiveRank(
        data=data,
        kind=kind,
        is_of_epoch="step" not in words,
        is_accuracy=bool(words & _ACCURACIES),
        is_average=bool(words & _AVERAGES),
        dots=-metric.count("."),
    )


def possible_objective(metrics: Sequence[str]) -> str:
    """Return a metric that could be an objective although its name is not that of a loss or a score; "" if there is none.

    It is one that is named only by held-out data, or the last one whose name is not that of a time, a count or an argument.
    """
    other_words = (_NO_SEARCH - _HELD_OUT - {"metric", "metrics"}) | _LOGARITHMIC | _COSTS
    possible_names = (name for name in reversed(metrics) if not _words(name) & other_words)
    return data_alone(metrics) or next(possible_names, "")


def data_alone(metrics: Iterable[str]) -> str:
    """Return the metric whose name has only words of held-out data, that of validation first; "" if there is none."""
    names = [name for name in metrics if _words(name) and _words(name) <= _HELD_OUT]
    return next((name for name in names if _words(name) <= _VALIDATION), next(iter(names), ""))


def candidates(text: str) -> list[str]:
    """Return the different names of losses and scores in a text, such as the output of a program, in their order.

    Characters other than letters, digits, `_` and `/` become `_`: `Acc_1` for `Acc@1 55.2`.
    """
    matches = list(_METRIC.finditer(text))
    counts = collections.Counter(match[0].lower() for match in matches)
    names: dict[str, None] = {}
    for match in matches:
        data_prefix, word = match.groups(default="")
        if _FRACTION.match(text, match.end()):  # `loss0` of `loss0.595`
            word = word.rstrip("0123456789")
        name = data_prefix.lower().replace("'s", "") + word  # `valid_0 rmse` of LightGBM's `valid_0's rmse`
        # Of `Last reward: 9, Average reward: 8`, the words before the name are part of it.
        is_repeated = counts[match[0].lower()] > 1
        first_character = max(0, match.start() - _LONGEST_QUALIFIER)
        if is_repeated and (qualifier := _QUALIFIER.search(text, first_character, match.start())):
            name = f"{qualifier[1].lower()}_{name}"
        names[re.sub(r"[^\w/]+", "_", name).strip("_")] = None
    return [name for name in names if is_measure(name)]


def names_data(metric: str) -> bool:
    """Return whether a metric names the data on which it is measured, as `train_loss` does."""
    return bool(_words(metric) & (_HELD_OUT | _TRAINING))


def is_held_out(metric: str) -> bool:
    """Return whether a metric is measured on held-out data, by its name."""
    return bool(_words(metric) & _HELD_OUT)


def is_of_training(metric: str) -> bool:
    """Return whether a metric is measured on training data, by its name."""
    return bool(_words(metric) & _TRAINING)


def is_option(metric: str, options: Collection[str]) -> bool:
    """Return whether a metric is only an option that the script prints, as `train_lr` is for the option `lr`.

    Then all words of the metric's name, without `train`, `val` and the like, are in the name of an option.
    """
    words = _words(metric) - (_HELD_OUT | _TRAINING)
    return bool(words) and any(words <= _words(option) for option in options)


def is_measure(metric: str) -> bool:
    """Return whether a metric is named as a loss or a score. An environment variable such as `HYDRA_FULL_ERROR` is not."""
    words = _words(metric)
    is_variable = "_" in metric and metric.isupper() and not re.fullmatch(r"[A-Z]+_\d+", metric)  # NDCG_10 is NDCG@10
    norms = _NORMS if is_held_out(metric) else set()  # otherwise `l1` is more likely an argument
    # A seed is a setting, even if its name has the word of a score.
    return not is_variable and "seed" not in words and bool(words & (_LOSSES | _SCORES | norms))


def direction(metric: str) -> str:
    """Return `maximize` or `minimize`, by the name of a metric."""
    return "minimize" if _words(metric) & (_LOSSES | _NORMS) else "maximize"
