#include "tools/manual/shell_script.h"

namespace keel::tools {

namespace {

// Bash splits words at "=" and ":", and replaces only what follows the last of these; quoted, a
// word is whole.
constexpr std::string_view kBash = R"sh(# bash completion for keel: source it, or put it into
# ~/.local/share/bash-completion/completions/keel
_keel() {
  local rest=${COMP_LINE:0:COMP_POINT} words=() word i
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $i == 0 || $rest == [[:space:]]* ]]; then
      rest=${rest#"${rest%%[![:space:]]*}"}
      words+=("")
    fi
    [[ $rest == "$word"* ]] || word=$rest
    words[${#words[@]} - 1]+=$word
    rest=${rest#"$word"}
  done
  local last=$((${#words[@]} - 1)) quoted='' skip='' breaks='' program=${words[0]/#\~/$HOME}
  local current=${words[last]}
  case $current in
    [\"\']*) quoted=1 current=${current:1} ;;
  esac
  if [[ -z $quoted ]]; then
    [[ $COMP_WORDBREAKS == *=* ]] && breaks+='='
    [[ $COMP_WORDBREAKS == *:* ]] && breaks+=':'
    [[ -n $breaks && $current == *["$breaks"]* ]] && skip=${current%"${current##*["$breaks"]}"}
  fi
  for ((i = 1; i < last; i++)); do
    words[i]=${words[i]#[\"\']}
    words[i]=${words[i]%[\"\']}
  done
  COMPREPLY=()
  local line text
  while IFS= read -r line; do
    text=${line%%$'\t'*}
    case $line in
      :files*)
        local before=${line#:files } path
        while IFS= read -r path; do
          text=$before$path
          COMPREPLY+=("${text#"$skip"}")
        done < <(compgen -f -- "${current#"$before"}")
        compopt -o filenames 2>/dev/null
        ;;
      *)
        COMPREPLY+=("${text#"$skip"}")
        [[ $text == *[=.] ]] && compopt -o nospace 2>/dev/null
        ;;
    esac
  done < <("$program" __complete "${words[@]:1:last-1}" "$current" 2>/dev/null)
}
complete -F _keel keel
)sh";

constexpr std::string_view kZsh = R"sh(#compdef keel
# zsh completion for keel: put it as _keel into a folder of $fpath
_keel() {
  local line text
  local -a open_texts open_shown texts shown
  for line in "${(@f)$("${(Q)words[1]/#\~/$HOME}" __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
    text=${line%%$'\t'*}
    case $line in
      '') ;;
      :files*)
        local before=${line#:files }
        if [[ -z $before ]] || compset -P "${(b)before}"; then
          _files
        fi
        ;;
      *)
        local meaning=${line#*$'\t'}
        if [[ $text == *[=.] ]]; then
          open_texts+=("$text")
          open_shown+=("$text${meaning:+  -- $meaning}")
        else
          texts+=("$text")
          shown+=("$text${meaning:+  -- $meaning}")
        fi
        ;;
    esac
  done
  (( $#open_texts )) && compadd -S '' -l -d open_shown -a open_texts
  (( $#texts )) && compadd -l -d shown -a texts
  return 0
}
if [[ $funcstack[1] == _keel ]]; then
  _keel "$@"
else
  compdef _keel keel
fi
)sh";

constexpr std::string_view kFish =
    R"sh(# fish completion for keel: put it as keel.fish into ~/.config/fish/completions
function __keel_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    for line in ($program __complete $words[2..-1] (string replace -r '^["\']' '' -- "$current") 2>/dev/null)
        if string match -q ':files*' -- $line
            set -l before (string sub -s 8 -- $line)
            set -l path (string sub -s (math (string length -- "$before") + 1) -- "$current")
            for found in (__fish_complete_path $path '')
                echo $before$found
            end
        else
            echo $line
        end
    end
end
complete -c keel -f -a '(__keel_complete)'
)sh";

}  // namespace

std::string_view CompletionScript(Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return kBash;
    case Shell::kZsh:
      return kZsh;
    case Shell::kFish:
      return kFish;
  }
  return "";
}

}  // namespace keel::tools
