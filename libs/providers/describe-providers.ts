import { providerPlaces } from './provider-places.ts';
import { relayAreas, type Operation, type Provider, type RelayArea } from './provider.ts';

export type OperationForm = 'pass-through' | 'transformed' | 'cannot';
/** Operations with a route of their own; those of areas are told with their area. */
type OwnOperation = Extract<Operation, 'chat' | 'completions' | 'embeddings' | 'models'>;
type AreaName = RelayArea | 'fine_tuning';

export type ProviderDescription = {
  id: string;
  operations: Readonly<Record<OwnOperation, OperationForm>>;
  /** Of everything but completions: areas are forwarded whole, or not at all; fine-tuning jobs are our own. */
  areas: Readonly<Record<AreaName, OperationForm>>;
  /** With the names of settings in braces; null: the caller names a host. */
  address: string | null;
  /** Beside `key` and `custom_host`; a question mark behind those that may be left out. */
  settings: readonly string[];
  differences: readonly string[];
  /** For some of its models, or for all: a JSON object without a schema is asked for in words. */
  asksForJsonInWords: boolean;
};

const operationNames: readonly OwnOperation[] = ['chat', 'completions', 'embeddings', 'models'];
const areaNames: readonly AreaName[] = [...relayAreas, 'fine_tuning'];

/** What a provider can, and where it is, as its adapter says it. */
export function describeProvider(provider: Provider): ProviderDescription {
  const formOf = (operation: OwnOperation): OperationForm => {
    const translation = provider.operations[operation];
    if (!translation) return 'cannot';
    return translation.passThrough ? 'pass-through' : 'transformed';
  };
  const place = providerPlaces[provider.id];
  return {
    id: provider.id,
    operations: {
      chat: formOf('chat'),
      completions: formOf('completions'),
      embeddings: formOf('embeddings'),
      models: formOf('models'),
    },
    areas: Object.fromEntries(areaNames.map((area) => [area, areaFormOf(provider, area)])) as Record<
      AreaName,
      OperationForm
    >,
    address: place?.address || (provider.baseUrlOf({})?.href ?? null),
    settings: place?.settings ?? [],
    differences: provider.differences ?? [],
    asksForJsonInWords: provider.operations.chat?.asksForJsonInWords !== undefined,
  };
}

function areaFormOf({ relay, fineTuning }: Provider, area: AreaName): OperationForm {
  if (area === 'fine_tuning') return fineTuning ? 'transformed' : 'cannot';
  return relay?.areas.includes(area) ? 'pass-through' : 'cannot';
}

/** docs/providers.md, whole. */
export function providersToMarkdown(providers: readonly ProviderDescription[]): string {
  const code = (texts: readonly string[]): string => texts.map((text) => `\`${text}\``).join(', ') || '-';
  const operations = table(
    ['provider', ...operationNames],
    providers.map(({ id, operations }) => [`\`${id}\``, ...operationNames.map((name) => operations[name])]),
  );
  const areas = table(
    ['provider', ...areaNames],
    providers.map(({ id, areas: forms }) => [`\`${id}\``, ...areaNames.map((name) => forms[name])]),
  );
  const places = table(
    ['provider', 'base address', 'settings'],
    providers.map(({ id, address, settings }) => [
      `\`${id}\``,
      address === null ? 'its `custom_host`' : `\`${address.replace(/\/$/, '')}\``,
      code(settings),
    ]),
  );
  const inWords = providers.flatMap(({ id, asksForJsonInWords }) => (asksForJsonInWords ? [id] : []));
  const differences = table(
    ['provider', 'what is changed'],
    providers
      .filter((provider) => provider.differences.length > 0)
      .map((provider) => [`\`${provider.id}\``, provider.differences.join('; ')]),
  );
  return [
    '# Providers',
    '<!-- Made by `npm run sluice -- providers --markdown > docs/providers.md`; a test compares it with the code. -->',
    '## Operations',
    [
      '- **pass-through**: the client’s bytes go out and the provider’s bytes come back; only what is named below, or what a',
      '  config edits, is changed in place.',
      '- **transformed**: request, answer, stream and errors are translated. Parameters that the provider cannot take are',
      '  named in `x-gateway-dropped-params`, or refused where that is asked for.',
      '  Parameters of the provider’s own pass under their names: `stream_function_call_arguments: true` has Gemini 3 on',
      '  `vertex` stream the arguments of tool calls piece by piece.',
      '- **cannot**: answered with 400 `unsupported_operation` before anything is sent.',
    ].join('\n'),
    operations,
    '## Other areas',
    [
      'All of an area’s operations (`GET /openapi.json` lists them) go to one provider, whole: no config but its first target,',
      'no cache, no retries. Fine-tuning jobs are Sluice’s own: it uploads their files, creates and follows them at the',
      'provider, and keeps events, checkpoints and result files. Files and batches are Sluice’s own too, and a batch runs on',
      'every provider that has its endpoint: for `/v1/responses`, `/v1/moderations` and `/v1/images/generations` that is the',
      'area, and such lines have retries and a config’s targets like all others.',
    ].join('\n'),
    areas,
    '## JSON answers',
    [
      '`response_format` goes to the provider’s own JSON mode. There is none for `json_object`, an object of any shape, at',
      `${code(inWords)} (of \`vertex\`: its Claude models). There the model is told to`,
      'answer with a single JSON object and nothing else, behind all other instructions, and the answer is checked:',
    ].join('\n'),
    [
      '- A finished answer must be a JSON object (1 MiB at most); white space and one Markdown fence around it are taken away.',
      '  Any other ends the call with 502 `json_object_not_met` (a line of a batch: in the error file); its tokens count. The',
      '  `retry` of a config asks again where 502 is among its statuses, and a fallback goes on; nothing else does, since every',
      '  attempt is paid for. No circuit breaker counts it.',
      '- What passes as the model said it: an answer cut off by its limit of tokens, a refusal, and calls of tools.',
      '- A stream is asked for whole and comes in one piece, so that none begins with prose.',
    ].join('\n'),
    [
      '`json_schema` is always the provider’s own; models that have none for it refuse it (400). Without a `schema` it is',
      '`json_object`. What a provider cannot combine (Gemini’s older models and Cohere: JSON mode and tools; Perplexity:',
      '`json_object` at all) it refuses itself. Gemini’s JSON may be a list where no schema says otherwise. OpenAI and Azure want',
      'the word “JSON” in a message, and Cohere’s models need it.',
    ].join('\n'),
    '## Addresses and settings',
    'A `custom_host` replaces the base address, its folder included. Settings are members of a virtual key, beside its `key`;\n' +
      'those with a question mark may be left out. A setting of another provider is refused.',
    places,
    '## Where a dialect differs from OpenAI’s',
    'Pass-through all the same: bytes are changed only in requests and chunks that hold one of these words.',
    differences,
    '',
  ]
    .join('\n\n')
    .replace(/\n+$/, '\n');
}

/** Columns padded, as the formatter has them. */
function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((name, column) => Math.max(name.length, 3, ...rows.map((row) => row[column]?.length ?? 0)));
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join(' | ')} |`;
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...rows.map(line)].join('\n');
}
