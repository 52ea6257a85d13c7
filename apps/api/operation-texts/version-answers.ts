import { recordOf } from './example-records.ts';

const later = '2026-11-23T12:00:00.000Z';

const prompt = {
  ...recordOf('prompt'),
  parameters: { temperature: 0 },
  version_id: 'prompt_abc@2',
  prompt_version: 2,
  prompt_version_id: 'prompt_abc@2',
  prompt_version_description: 'colder',
  last_version: 2,
  last_updated_at: later,
};
const { string, model } = prompt as { string?: string; model?: string };
/** What a version has beyond the prompt. */
const ofPromptVersion = {
  prompt_id: 'prompt_abc',
  prompt_template: { string, parameters: { temperature: 0 }, model },
  prompt_description: 'colder',
};
const promptVersion = { ...prompt, ...ofPromptVersion };
const firstPromptVersion = {
  ...recordOf('prompt'),
  last_version: 2,
  prompt_version_status: 'archived',
  ...ofPromptVersion,
  prompt_template: { string, parameters: { temperature: 0.2 }, model },
  prompt_description: null,
  label_id: null,
};

const partial = {
  ...recordOf('prompt_partial'),
  string: 'Yours, {{team}}',
  version: 2,
  version_id: 'partial_abc@2',
  prompt_partial_version_id: 'partial_abc@2',
  last_version: 2,
};
const ofPartialVersion = { prompt_partial_id: 'partial_abc', description: null };
const firstPartialVersion = {
  ...recordOf('prompt_partial'),
  last_version: 2,
  ...ofPartialVersion,
  prompt_version_status: 'archived',
};

/** Answers of prompts and partials that show a version. */
export const versionAnswers: Readonly<Record<string, object>> = {
  updatePrompt: { ...promptVersion, prompt_version_status: 'archived', label_id: null },
  publishPrompt: { ...prompt, label_id: null },
  labelPromptVersion: { ...promptVersion, prompt_version_label_id: 'label_abc' },
  listPromptVersions: [{ ...firstPromptVersion, id: 'prompt_abc@1' }],
  retrievePromptVersion: firstPromptVersion,
  updatePartial: { ...partial, ...ofPartialVersion, prompt_version_status: 'archived' },
  publishPromptPartial: partial,
  listPromptPartialVersions: [{ ...firstPartialVersion, id: 'partial_abc@1' }],
  retrievePromptPartialVersion: firstPartialVersion,
};
