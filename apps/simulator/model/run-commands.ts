import type { Tool } from './choose-tools.ts';
import { createRandom } from './hash.ts';
import { valueForSchema } from './value-for-schema.ts';

/** The names that coding agents have for the tool that runs a command. */
const shellName = /^(?:bash|shell|exec_command|run_shell_command|shell_command|container\.exec)$/i;
const commandMember = /^(?:command|cmd)$/;

type Schema = { properties?: Record<string, { type?: unknown }>; required?: readonly string[] };

type Asked = { lastUserText: string; toolResults?: number; tools: readonly Tool[]; hash: number };

/**
 * The next of the commands in backticks of the user's message, as a call of the shell tool; null if all have run, or if there
 * is no such tool. The other required arguments are filled from the tool's schema.
 */
export function nextCommand({
  lastUserText,
  toolResults = 0,
  tools,
  hash,
}: Asked): { tool: Tool; input: object } | null {
  const commands = [...lastUserText.matchAll(/`([^`\n]+)`/g)].map(([, command = '']) => command);
  const command = commands[toolResults];
  const tool = tools.find(({ name }) => shellName.test(name));
  if (command === undefined || tool === undefined) return null;
  const { properties = {}, required = [] } = tool.parameters as Schema;
  const member = Object.keys(properties).find((name) => commandMember.test(name)) ?? 'command';
  const asList = properties[member]?.type === 'array';
  const needed = Object.fromEntries(Object.entries(properties).filter(([name]) => required.includes(name)));
  const filled = valueForSchema({ type: 'object', properties: needed, required }, createRandom(hash)) as object;
  return { tool, input: { ...filled, [member]: asList ? ['bash', '-c', command] : command } };
}
