import type { Command } from 'commander';
import { CliError, exitCodes } from './cli-error.ts';
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
/** A whole number of an option. Throws CliError (usage). */
export const toCount =
  ({ min, max }: { min: number; max: number }) =>
  (text: string): number => {
    const value = Number(text);
    if (/^\d+$/.test(text) && value >= min && value <= max) return value;
    throw new CliError(`'${text}' must be a whole number from ${min} to ${max}.`, { exitCode: exitCodes.usage });
  };

/** Collects `name=value` options into one object. Throws CliError (usage). */
export function toPairs(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=');
  if (at > 0) return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
  throw new CliError(`'${text}' must be written as name=value.`, { exitCode: exitCodes.usage });
}
