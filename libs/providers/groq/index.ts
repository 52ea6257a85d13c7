import type { Amend } from '../variant.ts';
import { toRecord } from '../turns/json-value.ts';
import { openAiCompatible } from '../openai-compatible.ts';

/** console.groq.com/docs/api-reference */
export const groq = openAiCompatible({
  id: 'groq',
  baseUrl: 'https://api.groq.com/openai/v1',
  operations: ['chat', 'models'],
  relays: ['audio', 'responses', 'stored_objects'],
  variant: {
    usageBesideChoices: true,
    answers: { hints: ['"x_groq"'], open: openAmend },
    notes: ['usage of `x_groq`'],
  },
});

/** Groq's last chunk sometimes has usage only in `x_groq`; OpenAI has it next to the choices. */
function openAmend(): Amend {
  return (answer) => {
    const { usage } = toRecord(answer['x_groq']);
    const isGiven = answer['usage'] !== undefined && answer['usage'] !== null;
    return isGiven || usage === undefined ? answer : { ...answer, usage };
  };
}
