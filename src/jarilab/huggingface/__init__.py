"""Models of Hugging Face transformers in a folder on disk: loaded without a network, without code of their own and
without anything that is unpickled."""

from jarilab.huggingface.families import from_huggingface as from_huggingface
from jarilab.huggingface.folder import Loaded as Loaded
from jarilab.huggingface.folder import load as load
from jarilab.huggingface.reading import Reading as Reading
from jarilab.huggingface.reading import read as read
from jarilab.huggingface.reading import reads_files as reads_files
from jarilab.huggingface.saying import Says as Says
from jarilab.huggingface.swapping import swap as swap
