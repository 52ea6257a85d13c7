import { checks, type Parameter } from '../../generated/checks.ts';
import {
  conditionGroups,
  conditionOf,
  conditions,
  isSetByCondition,
  withCondition,
  type CheckDraft,
} from './guardrail-sentences.ts';

/** The generated table uses short IDs; stored ones can have the prefix `default.`. */
export const shortId = (id: string): string => id.replace(/^default\./, '');

/** One condition of a guardrail: the end of the sentence "Refuse the call when …", and its parameters. */
export function CheckFields({
  check,
  index,
  start,
  onChange,
  onRemove,
}: {
  check: CheckDraft;
  index: number;
  /** The beginning of the sentence. */
  start: string;
  onChange: (check: CheckDraft) => void;
  onRemove: () => void;
}) {
  const known = checks[check.id];
  const label = index === 0 ? start : 'or when';
  const chosen = conditionOf(check);
  const fields = Object.entries(known?.properties ?? {}).filter(
    ([name]) => (chosen === undefined || !isSetByCondition(name)) && (!isAlias(name) || name in check.parameters),
  );
  return (
    <fieldset className="stack check-box">
      <legend className="hidden">{`Condition ${index + 1}`}</legend>
      <div className="row between">
        <label>
          {label}
          <select
            value={chosen === undefined ? '' : conditions.indexOf(chosen)}
            onChange={(event) => {
              const next = conditions[Number(event.target.value)];
              if (next !== undefined) onChange(withCondition(check, next));
            }}
          >
            {chosen === undefined ? <option value="">the check {check.id} fails</option> : null}
            {conditionGroups.map(([group, members]) => (
              <optgroup key={group} label={group}>
                {members.map((each) => (
                  <option key={each.text} value={conditions.indexOf(each)}>
                    {each.text}
                  </option>
                ))}
              </optgroup>
            ))}
          </select>
        </label>
        <button type="button" className="plain" onClick={onRemove} aria-label={`Remove condition ${index + 1}`}>
          ✕
        </button>
      </div>
      {fields.map(([name, parameter]) => (
        <Field
          key={`${check.id} ${name}`}
          name={name}
          parameter={parameter}
          isRequired={known?.required.includes(name) === true || mustBeSet.has(name)}
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

/** Aliases of `min` and `max`, shown only if a stored guardrail uses them. */
const isAlias = (name: string): boolean => /^(?:min|max)(?:Words|Sentences|Characters)$/.test(name);

/** The schema marks these as optional only because of checks that were stored before they existed. */
const mustBeSet: ReadonlySet<string> = new Set(['issuer', 'audience']);

const fieldNames: Readonly<Record<string, string>> = {
  rule: 'Pattern (RE2)',
  words: 'Words',
  keys: 'Members',
  models: 'Models',
  metadataKeys: 'Metadata names',
  suffix: 'Text',
  format: 'Language',
  schema: 'Schema',
  min: 'At least',
  max: 'At most',
};

type FieldProps = {
  name: string;
  parameter: Parameter;
  isRequired: boolean;
  value: unknown;
  /** undefined: not set. */
  onChange: (value: unknown) => void;
};

function Field({ name, parameter, isRequired, value, onChange }: FieldProps) {
  const text = asText(value);
  const label = fieldNames[name] ?? name;
  if (parameter.type === 'boolean') {
    return (
      <label className="check">
        <input
          type="checkbox"
          checked={(value ?? parameter.default) === true}
          onChange={(event) => onChange(event.target.checked)}
        />
        {label}
      </label>
    );
  }
  if (parameter.enum !== undefined) {
    return (
      <label>
        {label}
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
        {label}
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
        {label}
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
          One per line{parameter.items?.enum === undefined ? '' : `: ${parameter.items.enum.join(', ')}`}
        </span>
      </label>
    );
  }
  if (parameter.type === 'string') {
    return (
      <label>
        {label}
        <input value={text} required={isRequired} onChange={(event) => onChange(event.target.value || undefined)} />
      </label>
    );
  }
  // Objects, and values that can have one of several types, are edited as JSON. While the text is not valid JSON, it is kept
  // so that the user can continue to type.
  return (
    <label>
      {label}
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

/** The checks in the form that the API accepts: without empty lines in lists. */
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
