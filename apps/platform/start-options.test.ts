import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { startOptions } from './start-options.ts';

const commands = Object.entries(startOptions).map(([app, { flags }]) => ({
  app,
  command: [...flags, `apps/${app}/main.ts`],
}));
const read = (file: string): Promise<string> => readFile(new URL(`../../${file}`, import.meta.url), 'utf8');

test.each(commands)('npm run $app starts it with the flags of a child process', async ({ app, command }) => {
  const { scripts } = JSON.parse(await read('package.json')) as { scripts: Record<string, string> };
  expect(scripts[app]).toBe(['NODE_COMPILE_CACHE=node_modules/.cache/node-compile exec node', ...command].join(' '));
});

test.each(commands)('so does its container: $app', async ({ command }) => {
  const files = (await read('Dockerfile')) + (await read('docker-compose.yml'));
  const quote = (argument: string): string => `["']?${argument}["']?`;
  expect(files).toMatch(new RegExp(`(CMD|command:) \\[${command.map(quote).join(', ')}\\]`));
});
