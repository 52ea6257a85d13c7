import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { configurationToMarkdown } from './describe-configuration.ts';

test('docs/configuration.md is up to date (npm run generate)', () => {
  const page = readFileSync(new URL('../docs/configuration.md', import.meta.url), 'utf8');
  expect(page).toBe(configurationToMarkdown());
});
