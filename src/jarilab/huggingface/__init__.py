"""Models of Hugging Face transformers from folders on disk.

They are loaded without a network, without code from the folder and without unpickling.
"""

from jarilab.huggingface.families import from_huggingface as from_huggingface
from jarilab.huggingface.loading import Loaded as Loaded
from jarilab.huggingface.loading import load as load
from jarilab.huggingface.model_inputs import ModelInput as ModelInput
from jarilab.huggingface.model_inputs import read as read
from jarilab.huggingface.model_inputs import reads_files as reads_files
from jarilab.huggingface.model_inputs import reads_image_and_text as reads_image_and_text
from jarilab.huggingface.outputs import OutputReader as OutputReader
from jarilab.huggingface.swapping import swap as swap
