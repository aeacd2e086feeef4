"""Which law sees through which encoding of `laws/adversaries.py`."""

# encoding: the law that breaks, and words from what it says.
SEEN = {
    "HalfDistances": ("agrees with its formula", "scores of head 0 over the distances 0 to 4200"),
    "ClipsFarther": ("agrees with its formula", "scores of head 0 over the distances 0 to 4200"),
    "HoleInTheMiddle": ("agrees with its formula", "scores of head 0 over the distances 0 to 4200"),
    "LooksAhead": ("agrees with its formula", "40 heads of width 4"),
    "AddsInTheInputsPrecision": ("results agree across precisions", "embed in bfloat16, from position 7 on"),
    "Widens": ("results agree across precisions", "embed in float32, from position 7 on: is float64"),
    "SpoiltByAutocast": ("results agree across precisions", "rotate under autocast, from position 7 on"),
    "InjectsCoarsely": ("results agree across precisions", "inject in float32, from position 7 on"),
    "LearnsInHalf": ("results agree across precisions", "rotate in bfloat16, from position 7 on"),
    "TwelveHeads": ("agrees with its formula", "output at positions [7, 8, 9, 12, 16, 47, 307], 12 heads of width 20"),
    "OneHead": ("agrees with its formula", "output at positions [7, 8, 9, 12, 16, 47, 307], 1 heads of width 20"),
    "EightWide": ("agrees with its formula", "output at positions [7, 8, 9, 12, 16, 47, 307], 1 heads of width 20"),
    "BackwardsInCross": (
        "agrees with its formula",
        "output at positions [7, 8, 9, 12, 16, 47, 307], in cross-attention from [1, 2, 5, 9]",
    ),
    "QueriesOnlyInCross": (
        "shift invariance is as claimed",
        "weights of a cross-attention with all positions shifted by 1",
    ),
    "SixteenKeys": ("agrees with its formula", "output at 40 positions from 0 on"),
    "CausalShortcut": (
        "a position means the same among any others",
        "bias for the first tokens, as among all, from position 0 on",
    ),
    "SilentInDecoders": (
        "output depends on token order",
        "it overrides bias, but the outputs of a causal stack follow a permutation of the tokens",
    ),
    "Leaks": (
        "a position means the same among any others",
        "terms for the first tokens, as among all, from position 0 on",
    ),
    "MixesDocuments": (
        "padding changes no real token",
        "a row with padding in between, from position 0 on, in a causal stack",
    ),
    "CausalBatch": (
        "a position means the same among any others",
        "bias of a row with its own positions and frame, at restarted positions from 0 on",
    ),
    "CausalAbsolute": ("shift invariance is as claimed", "output of a causal stack with all positions shifted by 1"),
    "MeanState": (
        "a position means the same among any others",
        "terms for the first tokens, as among all, from position 0 on",
    ),
    "KeepsItsRelation": (
        "calls leave nothing behind",
        "terms used for the first time, prepared before other calls",
    ),
    "KeepsItsAngles": (
        "calls leave nothing behind",
        "rotate used for the first time, prepared before other calls",
    ),
    "UsesUpItsRelation": (
        "calls leave nothing behind",
        "terms used for the second time, prepared before other calls",
    ),
    "AddsInPlace": ("calls leave nothing behind", "a call changes x in place"),
    "MovesPlaces": ("calls leave nothing behind", "a call changes places in place"),
    "Tires": ("calls leave nothing behind", "bias called again after other calls"),
    "NeverShrinks": (
        "calls leave nothing behind",
        "embed used for the first time, prepared before other calls",
    ),
    "KeyedByLength": (
        "calls leave nothing behind",
        "bias used for the first time, prepared before other calls",
    ),
    "KeyedByEnds": (
        "a position means the same among any others",
        "embed for fewer keys than queries, as among all, from position 0 on",
    ),
    "CountsInstances": (
        "instances share nothing",
        "embed of an instance under test, among others, is not what it is alone in a new process",
    ),
    "FirstOneWins": (
        "instances share nothing",
        "embed of an instance with other options, among others, is not what it is alone in a new process",
    ),
    "HashedTable": (
        "instances share nothing",
        "embed of an instance under test, among others, is not what it is alone in a new process",
    ),
    "SilentInEvaluation": ("training and evaluation agree", "bias in training, as in evaluation"),
    "ShortcutWithoutGradients": ("training and evaluation agree", "bias under torch.no_grad"),
    "DropsUnsaid": ("training and evaluation agree", "bias in training, as in evaluation"),
    "DropsAlways": ("training and evaluation agree", "bias called twice in evaluation"),
    "DropsNever": (
        "training and evaluation agree",
        "it says random_in_training = True, but training gives the same each time; claim False",
    ),
    "HalfAGradient": ("gradients match finite differences", "gradient of embed with respect to parameter table"),
    "FirstRowStill": (
        "every kernel equals the definition",
        "gradient of parameter table of the definition, without a mask",
    ),
    "LearnsInEvaluation": ("gradients match finite differences", "gradient of embed with respect to parameter table"),
    "LearnsInDouble": (
        "results agree across precisions",
        "gradient of embed with respect to parameter table in float32",
    ),
    "CutsTheInput": ("gradients match finite differences", "gradient of inject with respect to x"),
    "CutsWeights": ("every kernel equals the definition", "gradient of q of the definition, without a mask"),
    "RootOfNothing": (
        "every kernel equals the definition",
        "gradient of parameter size of the definition, without a mask",
    ),
    "RootOfPlaces": (
        "fractional positions are as claimed",
        "the gradient with respect to positions is not finite at a distance of 0",
    ),
    "Rounds": (
        "fractional positions are as claimed",
        "fractional positions are rounded; say integer_only = True and refuse them",
    ),
    "Relative": (
        "a position means the same among any others",
        "embed for the first tokens, as among all, from position 0 on",
    ),
    "TopLeft": ("agrees with its formula", "output at positions [0, 1, 2, 5, 9, 40, 300]"),
    "ByRank": ("agrees with its formula", "output at positions [0, 1, 2, 5, 9, 40, 300]"),
    "Sorts": (
        "a position means the same among any others",
        "embed for fewer keys than queries, as among all, from position 0 on",
    ),
    "OneFrame": (
        "a position means the same among any others",
        "embed of a row with its own positions and frame, from position 0 on",
    ),
    "TurnsUnplacedKeys": (
        "unplaced tokens get no position",
        "rotate of keys at an unplaced token, from position 0 on",
    ),
    "SwellsKeys": ("rotation keeps norms", "norms of keys from position 0 on"),
    "StaleKeys": (
        "a position means the same among any others",
        "rotate for one query, as among all, from position 0 on",
    ),
    "LengthUnsaid": (
        "a position means the same among any others",
        "rotated q.k for the first tokens, as among all, from position 0 on",
    ),
    "LengthOverstated": (
        "a position means the same among any others",
        "it says depends_on_length = True, but later keys change nothing for earlier ones",
    ),
    "OverstatesItsDistance": (
        "the longest position is enforced",
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
