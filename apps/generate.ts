import { writeFileSync } from 'node:fs';
import { configurationToMarkdown } from './describe-configuration.ts';

// Part of `npm run generate`.
writeFileSync(new URL('../docs/configuration.md', import.meta.url), configurationToMarkdown());
