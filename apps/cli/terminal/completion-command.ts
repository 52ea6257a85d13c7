import { Argument, type Command } from 'commander';
import { print } from './output.ts';

/** Adds `sluice completion`, which prints a completion script for a shell, derived from the commands. */
export function addCompletionCommand(program: Command): void {
  program
    .command('completion')
    .addArgument(new Argument('<shell>').choices(Object.keys(scripts)))
    .description('print the completion script for bash, zsh or fish')
    .addHelpText(
      'after',
      '\n  bash: source <(sluice completion bash)\n  zsh:  source <(sluice completion zsh)\n  fish: sluice completion fish | source',
    )
    .action((shell: string) => {
      print(scripts[shell]?.(wordsOf(program)) ?? '');
    });
}

/** The words that can follow each command: `path` is like `batch list`, `words` are its subcommands and options. */
function wordsOf(command: Command, path = ''): { path: string; words: string[] }[] {
  const options = command.options.flatMap(({ long }) => long ?? []);
  const own = { path, words: [...command.commands.map((each) => each.name()), ...options, '--help'] };
  return [own, ...command.commands.flatMap((each) => wordsOf(each, `${path} ${each.name()}`.trim()))];
}

type Words = ReturnType<typeof wordsOf>;

// The words consist of letters, digits and hyphens, so these scripts do not need quoting.
function bash(words: Words): string {
  return `_sluice() {
  local current="\${COMP_WORDS[COMP_CWORD]}" path="" next word
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    next="\${path:+$path }$word"
    case "$next" in
      ${words
        .slice(1)
        .map(({ path }) => `"${path}"`)
        .join(' | ')}) path="$next" ;;
    esac
  done
  case "$path" in
${words.map(({ path, words: following }) => `    "${path}") COMPREPLY=($(compgen -W "${following.join(' ')}" -- "$current")) ;;`).join('\n')}
  esac
}
complete -o bashdefault -o default -F _sluice sluice`;
}

function fish(words: Words): string {
  return `function __sluice_words
  set -l path ''
  for word in (commandline -opc)[2..-1]
    set -l next (string trim "$path $word")
    switch "$next"
      case ${words
        .slice(1)
        .map(({ path }) => `'${path}'`)
        .join(' ')}
        set path "$next"
    end
  end
  switch "$path"
${words.map(({ path, words: following }) => `    case '${path}'\n      printf '%s\\n' ${following.join(' ')}`).join('\n')}
  end
end
complete -c sluice -a '(__sluice_words)'`;
}

const scripts: Readonly<Record<string, (words: Words) => string>> = {
  bash,
  zsh: (words) => `autoload -U +X bashcompinit && bashcompinit\n${bash(words)}`,
  fish,
};
