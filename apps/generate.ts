import { writeFileSync } from 'node:fs';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { recordKindOf } from './cli/records/record-kinds.ts';
import { configurationToMarkdown } from './describe-configuration.ts';

// Part of `npm run generate`.
const write = (path: string, text: string): void => writeFileSync(new URL(path, import.meta.url), text);
write('../docs/configuration.md', configurationToMarkdown());
const kinds = resourceKinds.map((kind) => JSON.stringify(recordKindOf(kind)));
write('cli/record-kinds.json', `[\n${kinds.join(',\n')}\n]\n`);
