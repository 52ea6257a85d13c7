import { InvalidArgumentError, Option, type Command } from 'commander';
import type { ConnectionOptions } from './connection.ts';
import type { OutputOptions } from '../terminal/output.ts';

export type ClientOptions = ConnectionOptions & OutputOptions;

/** Adds a command that calls a server, with the options that all such commands have. */
export function clientCommand(parent: Command, usage: string, description: string): Command {
  const command = parent.command(usage).description(description);
  clientCommands.add(command);
  return command;
}

const clientCommands = new WeakSet<Command>();

/** Adds the options that all client commands have, after those of the command itself. Other commands get no options. */
export function addConnectionOptions(command: Command): void {
  if (!clientCommands.has(command)) return;
  for (const [flags, description] of [
    ['--server <url>', 'address of the server'],
    ['--key <key>', 'API key; visible to others on this machine: prefer SLUICE_API_KEY or sluice login'],
    ['--profile <name>', 'profile stored by sluice login'],
    ['--json', 'print one JSON object per line (default in a pipe)'],
    ['--table', 'print tables (default on a terminal)'],
  ] as const)
    command.addOption(new Option(flags, description).helpGroup('Server and output:'));
}

/** The group of commands with this name, created if it is new. The group's own options do not apply to its commands. */
export function addGroup(parent: Command, name: string, description: string): Command {
  const known = parent.commands.find((command) => command.name() === name);
  return (known ?? parent.command(name).description(description)).enablePositionalOptions();
}

/** An integer of an option. Throws InvalidArgumentError, to which commander adds the name of the option. */
export const toCount =
  ({ min, max }: { min: number; max: number }) =>
  (text: string): number => {
    const value = Number(text);
    if (/^-?\d+$/.test(text) && value >= min && value <= max) return value;
    throw new InvalidArgumentError(`Use an integer from ${min} to ${max}.`);
  };

/** A maximum as a decimal, or `none`. Throws InvalidArgumentError. */
export function toMaximum(text: string): string {
  if (text === 'none' || /^\d+(?:\.\d+)?$/.test(text)) return text;
  throw new InvalidArgumentError('Use a number such as 0.5, or none.');
}

/** Collects `name=value` options into one object. Throws InvalidArgumentError. */
export function toPairs(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=');
  if (at > 0) return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
  throw new InvalidArgumentError('Use the form name=value.');
}
