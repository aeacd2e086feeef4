# Completion for jarilab, written by `jarilab completion bash`.
_jarilab() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} task="" words="" i
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "@VERBS@ --help --version" -- "$word"))
    return
  fi
  case "$verb:$before" in
@CHOICES@
  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    return
  fi
  if [ "$COMP_CWORD" -eq 2 ] && [[ $word != -* ]]; then
    case "$verb" in
@FIRST@
    esac
    if [ -n "$words" ]; then
      COMPREPLY=($(compgen -W "$words" -- "$word"))
      return
    fi
  fi
  for ((i = 2; i < COMP_CWORD; i++)); do
    case "$verb:${COMP_WORDS[i]}" in
@TASKS@
    esac
  done
  case "$verb" in
@GENERAL@
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
}
complete -o filenames -F _jarilab jarilab
