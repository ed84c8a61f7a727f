package main

import (
	"context"
	"os"

	"hpcc/text"

	"github.com/urfave/cli/v2"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a completion script for a shell", ArgsUsage: "SHELL",
		Description: `Prints a script that completes commands, flags, images, jobs, targets and sites in SHELL: bash,
zsh or fish.

   source <(hpcc completion bash)                            # in ~/.bashrc
   hpcc completion zsh > "${fpath[1]}/_hpcc"                 # once
   hpcc completion fish > ~/.config/fish/completions/hpcc.fish`,
		Action: action(parseCompletion),
	}
}

type completionArgs struct{ script string }

func parseCompletion(c *cli.Context) (*completionArgs, error) {
	shells, err := parseArguments(c, 1, 1, "bash, zsh or fish")
	if err != nil {
		return nil, err
	}
	script, ok := completionScripts[shells[0]]
	if !ok {
		return nil, text.Usagef("completion for %q is not supported", shells[0]).Hint("hpcc completion bash, zsh or fish")
	}
	return &completionArgs{script}, nil
}

func (a *completionArgs) run(context.Context) error {
	_, err := os.Stdout.WriteString(a.script)
	return err
}

// completionScripts holds the completion script of each shell. The scripts ask "hpcc complete"
// for candidates. A last line ":files" asks the shell to complete file names as well.
var completionScripts = map[string]string{
	// Bash splits words at colons and equal signs, which image names contain. So this script
	// splits the line itself, and cuts candidates to the part after the last of these characters.
	"bash": `_hpcc() {
    local line=${COMP_LINE:0:COMP_POINT} cur=${COMP_WORDS[COMP_CWORD]} files= word candidate
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]}-1]}
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        case $candidate in
        :files) files=1 ;;
        *) COMPREPLY+=("${candidate#"${word%"${word##*[:=]}"}"}") ;;
        esac
    done < <(hpcc complete -- "${words[@]:1}" 2>/dev/null)
    if [[ $files && ${#COMPREPLY[@]} -eq 0 ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -f -- "$cur")
    fi
}
complete -F _hpcc hpcc
`,
	"zsh": `#compdef hpcc
_hpcc() {
    local -a candidates
    local line files=
    for line in "${(@f)$(hpcc complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
        :files) files=1 ;;
        ?*) candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    (( ${#candidates} )) && _describe hpcc candidates
    [[ -n $files ]] && _files
}
if [ "$funcstack[1]" = "_hpcc" ]; then _hpcc "$@"; else compdef _hpcc hpcc; fi
`,
	"fish": `function __hpcc_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (hpcc complete -- $words[2..] 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c hpcc -f -a '(__hpcc_complete)'
`,
}
