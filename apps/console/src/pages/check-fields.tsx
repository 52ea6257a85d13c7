import { checks, type Parameter } from '../../generated/checks.ts';

export type CheckDraft = { id: string; parameters: Record<string, unknown> };

/** What each check finds out, for those who choose one. */
const texts: Readonly<Record<string, string>> = {
  regexMatch: 'the text matches a pattern',
  contains: 'the text has words',
  wordCount: 'the number of words',
  sentenceCount: 'the number of sentences',
  characterCount: 'the number of characters',
  jsonSchema: 'the text is JSON of a shape',
  jsonKeys: 'the text is JSON with members',
  validUrls: 'URLs in the text are valid',
  containsCode: 'the text has a block of code',
  endsWith: 'the text ends with something',
  isAllLowerCase: 'the text has no capital letters',
  alluppercase: 'the text has capital letters only',
  modelWhitelist: 'the model is one of these',
  requiredMetadataKeys: 'the call has metadata',
  allowedRequestTypes: 'the kind of call',
  webhook: 'your own server says so',
  jwt: 'the call has a valid token',
};

export const checkText = (id: string): string => texts[id] ?? id;

/** Short ids are those of the generated table; `default.` may precede them. */
export const shortId = (id: string): string => id.replace(/^default\./, '');

/** The form of one check, made from the schema of its parameters. */
export function CheckFields({
  check,
  index,
  onChange,
  onRemove,
}: {
  check: CheckDraft;
  index: number;
  onChange: (check: CheckDraft) => void;
  onRemove: () => void;
}) {
  const known = checks[check.id];
  const label = `Check ${index + 1}`;
  return (
    <fieldset className="stack check-box">
      <legend className="hidden">{label}</legend>
      <div className="row between">
        <label>
          {label}
          <select value={check.id} onChange={(event) => onChange({ id: event.target.value, parameters: {} })}>
            {Object.keys(checks).map((id) => (
              <option key={id} value={id}>
                {id}: {checkText(id)}
              </option>
            ))}
          </select>
        </label>
        <button type="button" className="plain" onClick={onRemove} aria-label={`Remove check ${index + 1}`}>
          ✕
        </button>
      </div>
      {Object.entries(known?.properties ?? {}).map(([name, parameter]) => (
        <Field
          key={`${check.id} ${name}`}
          name={name}
          parameter={parameter}
          isRequired={known?.required.includes(name) === true}
          value={check.parameters[name]}
          onChange={(value) => {
            const { [name]: _before, ...rest } = check.parameters;
            onChange({ ...check, parameters: value === undefined ? rest : { ...rest, [name]: value } });
          }}
        />
      ))}
    </fieldset>
  );
}

type FieldProps = {
  name: string;
  parameter: Parameter;
  isRequired: boolean;
  value: unknown;
  /** undefined: not given. */
  onChange: (value: unknown) => void;
};

function Field({ name, parameter, isRequired, value, onChange }: FieldProps) {
  const text = asText(value);
  if (parameter.type === 'boolean') {
    return (
      <label className="check">
        <input
          type="checkbox"
          checked={(value ?? parameter.default) === true}
          onChange={(event) => onChange(event.target.checked)}
        />
        {name === 'not' ? 'the opposite must hold' : name}
      </label>
    );
  }
  if (parameter.enum !== undefined) {
    return (
      <label>
        {name}
        <select value={asText(value ?? parameter.default)} onChange={(event) => onChange(event.target.value)}>
          {parameter.enum.map((each) => (
            <option key={String(each)}>{String(each)}</option>
          ))}
        </select>
      </label>
    );
  }
  if (parameter.type === 'integer') {
    return (
      <label>
        {name}
        <input
          type="number"
          value={text}
          required={isRequired}
          placeholder={asText(parameter.default) || 'any'}
          onChange={(event) => onChange(event.target.value === '' ? undefined : Number(event.target.value))}
        />
      </label>
    );
  }
  if (parameter.type === 'array') {
    return (
      <label>
        {name}
        <textarea
          rows={3}
          required={isRequired}
          value={Array.isArray(value) ? value.join('\n') : ''}
          onChange={(event) => {
            const lines = event.target.value.split('\n');
            onChange(lines.every((line) => line === '') ? undefined : lines);
          }}
        />
        <span className="hint">
          One on each line{parameter.items?.enum === undefined ? '' : `: ${parameter.items.enum.join(', ')}`}
        </span>
      </label>
    );
  }
  if (parameter.type === 'string') {
    return (
      <label>
        {name}
        <input value={text} required={isRequired} onChange={(event) => onChange(event.target.value || undefined)} />
      </label>
    );
  }
  // Objects, and what may be one of several types, are JSON; as long as it is none, the text is kept for more typing.
  return (
    <label>
      {name}
      <textarea
        className="code"
        rows={4}
        required={isRequired}
        value={text}
        onChange={(event) => onChange(event.target.value === '' ? undefined : jsonOr(event.target.value))}
      />
      <span className="hint">JSON</span>
    </label>
  );
}

const asText = (value: unknown): string =>
  value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value);

function jsonOr(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

/** The checks as the API takes them: without empty lines of lists. */
export const toChecks = (drafts: readonly CheckDraft[]): CheckDraft[] =>
  drafts.map(({ id, parameters }) => ({
    id,
    parameters: Object.fromEntries(
      Object.entries(parameters).map(([name, value]) => [
        name,
        Array.isArray(value) ? value.filter((each) => each !== '') : value,
      ]),
    ),
  }));
