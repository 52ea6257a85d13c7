import { writeFileSync } from 'node:fs';
import { describeProvider, providersToMarkdown } from './describe-providers.ts';
import { providers } from './provider-list.ts';
import { toSettingFieldsModule } from './setting-fields-module.ts';

// npm run generate: writes the files that are made from the providers' folders.
const write = (path: string, text: string): void => writeFileSync(new URL(path, import.meta.url), text);
write('setting-fields.ts', toSettingFieldsModule(providers));
write('../../docs/providers.md', providersToMarkdown(providers.map(describeProvider)));
