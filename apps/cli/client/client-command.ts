import type { Command } from 'commander';
import type { ConnectionOptions } from './connection.ts';
import type { OutputOptions } from './output.ts';

export type ClientOptions = ConnectionOptions & OutputOptions;

/** Adds a command that speaks to a server, with the options that all of them have. */
export function clientCommand(parent: Command, usage: string, description: string): Command {
  return parent
    .command(usage)
    .description(description)
    .option('--server <url>', 'the server to use')
    .option('--key <key>', 'the API key; others on this machine can see it: SLUICE_API_KEY or sluice login are safer')
    .option('--profile <name>', 'a profile that sluice login stored')
    .option('--json', 'print one JSON object per line, as in a pipe')
    .option('--table', 'print tables, as on a terminal');
}

/** The group of commands with this name, made when it is new. Its own options do not take those of its commands. */
export function groupOf(parent: Command, name: string, description: string): Command {
  const known = parent.commands.find((command) => command.name() === name);
  return (known ?? parent.command(name).description(description)).enablePositionalOptions();
}
