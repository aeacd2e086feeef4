"""Which law sees through which encoding of `laws/adversaries.py`."""

# encoding: the law that breaks, and words from what it says.
SEEN = {
    "HalfDistances": ("agrees with its formula", "scores of head 0 over the distances 0 to 300"),
    "ClipsFarther": ("agrees with its formula", "scores of head 0 over the distances 0 to 300"),
    "HoleInTheMiddle": ("agrees with its formula", "scores of head 0 over the distances 0 to 300"),
    "LooksAhead": ("agrees with its formula", "scores of head 0 over the distances 0 to 300"),
    "AddsInTheInputsPrecision": ("every precision hears the same", "embed in bfloat16, from position 7 on"),
    "Widens": ("every precision hears the same", "embed in float32, from position 7 on: comes out in float64"),
    "SpoiltByAutocast": ("every precision hears the same", "rotate under autocast, from position 7 on"),
    "InjectsCoarsely": ("every precision hears the same", "inject in float32, from position 7 on"),
    "LearnsInHalf": ("every precision hears the same", "rotate in bfloat16, from position 7 on"),
    "TwelveHeads": ("agrees with its formula", "output at positions [7, 8, 9, 12, 16, 47, 307], 12 heads of width 20"),
    "OneHead": ("agrees with its formula", "output at positions [7, 8, 9, 12, 16, 47, 307], 1 heads of width 20"),
    "EightWide": ("agrees with its formula", "output at positions [7, 8, 9, 12, 16, 47, 307], 1 heads of width 20"),
    "BackwardsInCross": (
        "agrees with its formula",
        "output at positions [7, 8, 9, 12, 16, 47, 307], in cross-attention from [1, 2, 5, 9]",
    ),
    "QueriesOnlyInCross": (
        "shift invariance is as claimed",
        "weights of a cross-attention with all positions moved by 1",
    ),
    "SixteenKeys": ("agrees with its formula", "output at 40 positions from 0 on"),
    "CausalShortcut": (
        "a place means the same beside any others",
        "bias for the first tokens, as among all, from position 0 on",
    ),
    "SilentInDecoders": (
        "order is heard",
        "it overrides bias, but the outputs of a causal stack follow a permutation of the tokens",
    ),
    "Leaks": (
        "a place means the same beside any others",
        "terms for the first tokens, as among all, from position 0 on",
    ),
    "MixesDocuments": (
        "padding changes no real token",
        "a row with padding in between, from position 0 on, in a causal stack",
    ),
    "CausalBatch": (
        "a place means the same beside any others",
        "bias of a row with places and a frame of its own, at restarted places from 0 on",
    ),
    "CausalAbsolute": ("shift invariance is as claimed", "output of a causal stack with all positions moved by 1"),
    "MeanState": (
        "a place means the same beside any others",
        "terms for the first tokens, as among all, from position 0 on",
    ),
    "KeepsItsRelation": (
        "calls leave nothing behind",
        "terms used for the first time, prepared before other questions were asked",
    ),
    "KeepsItsAngles": (
        "calls leave nothing behind",
        "rotate used for the first time, prepared before other questions were asked",
    ),
    "UsesUpItsRelation": (
        "calls leave nothing behind",
        "terms used for the second time, prepared before other questions were asked",
    ),
    "AddsInPlace": ("calls leave nothing behind", "asking it changes x in place"),
    "MovesPlaces": ("calls leave nothing behind", "asking it changes places in place"),
    "Tires": ("calls leave nothing behind", "bias asked again after other questions"),
    "NeverShrinks": (
        "calls leave nothing behind",
        "embed used for the first time, prepared before other questions were asked",
    ),
    "KeyedByLength": (
        "calls leave nothing behind",
        "bias used for the first time, prepared before other questions were asked",
    ),
    "KeyedByEnds": (
        "a place means the same beside any others",
        "embed for fewer keys than queries, as among all, from position 0 on",
    ),
    "CountsInstances": (
        "instances share nothing",
        "embed of an instance that was asked for, beside others, is not what it is alone in a new process",
    ),
    "FirstOneWins": (
        "instances share nothing",
        "embed of an instance with other options, beside others, is not what it is alone in a new process",
    ),
    "HashedTable": (
        "instances share nothing",
        "embed of an instance that was asked for, beside others, is not what it is alone in a new process",
    ),
    "SilentInEvaluation": ("training and evaluation agree", "bias in training, as in evaluation"),
    "ShortcutWithoutGradients": ("training and evaluation agree", "bias under torch.no_grad"),
    "DropsUnsaid": ("training and evaluation agree", "bias in training, as in evaluation"),
    "DropsAlways": ("training and evaluation agree", "bias asked twice in evaluation"),
    "DropsNever": (
        "training and evaluation agree",
        "it says random_in_training = True, but in training it gives the same each time; claim False",
    ),
    "HalfAGradient": ("gradients are slopes", "gradient of embed with respect to parameter table"),
    "FirstRowStill": (
        "every kernel equals the definition",
        "gradient of parameter table of the definition, without a mask",
    ),
    "LearnsInEvaluation": ("gradients are slopes", "gradient of embed with respect to parameter table"),
    "LearnsInDouble": (
        "every precision hears the same",
        "gradient of embed with respect to parameter table in float32",
    ),
    "CutsTheInput": ("gradients are slopes", "gradient of inject with respect to x"),
    "CutsWeights": ("every kernel equals the definition", "gradient of q of the definition, without a mask"),
    "RootOfNothing": (
        "every kernel equals the definition",
        "gradient of parameter size of the definition, without a mask",
    ),
    "RootOfPlaces": (
        "places between whole ones are as claimed",
        "the gradient with respect to places is not finite at a distance of 0",
    ),
    "Rounds": (
        "places between whole ones are as claimed",
        "places between whole ones are rounded without a word; say integer_only = True and refuse them",
    ),
    "Relative": (
        "a place means the same beside any others",
        "embed for the first tokens, as among all, from position 0 on",
    ),
    "TopLeft": ("agrees with its formula", "output at positions [0, 1, 2, 5, 9, 40, 300]"),
    "ByRank": ("agrees with its formula", "output at positions [0, 1, 2, 5, 9, 40, 300]"),
    "Sorts": (
        "a place means the same beside any others",
        "embed for fewer keys than queries, as among all, from position 0 on",
    ),
    "OneFrame": (
        "a place means the same beside any others",
        "embed of a row with places and a frame of its own, from position 0 on",
    ),
    "TurnsUnplacedKeys": (
        "tokens without a place have none",
        "rotate of keys at a token without a place, from position 0 on",
    ),
    "SwellsKeys": ("rotation keeps norms", "norms of keys from position 0 on"),
    "StaleKeys": ("a place means the same beside any others", "rotate for one query, as among all, from position 0 on"),
    "LengthUnsaid": (
        "a place means the same beside any others",
        "rotated q.k for the first tokens, as among all, from position 0 on",
    ),
    "LengthOverstated": (
        "a place means the same beside any others",
        "it says depends_on_length = True, but later keys change nothing for earlier ones",
    ),
    "OverstatesItsDistance": (
        "the end is announced",
        "its largest distance is 50, but 51 is not refused by its number: None",
    ),
    "DrawsElsewhere": (
        "initial values are those of the seed",
        "encoder.encoding.parts.0.0.size starts with other values in a second model of the same seed",
    ),
    "FillsHalf": (
        "initial values are those of the seed",
        "encoder.encoding.parts.0.0.size starts with other values in a second model of the same seed",
    ),
    "NumbersInstances": (
        "initial values are those of the seed",
        "encoder.encoding.parts.0.0.size starts with other values in a second model of the same seed",
    ),
}
