import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { useRef, useState, type DragEvent } from 'react';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api, toApiError } from '../api/client.ts';
import type { DryRun, FileObject } from '../api/types.ts';
import { serverPath } from '../api/server-url.ts';
import { bytes, count, isOfSimulator, moneyOf, percent, usd } from '../format.ts';
import { Badge, Card, ErrorNote, Facts, PageHead, Tile } from '../parts/basics.tsx';
import { DataTable } from '../parts/table.tsx';
import { checkLines, type FileCheck } from './check-lines.ts';

type Endpoint = '/v1/chat/completions' | '/v1/completions' | '/v1/embeddings' | '/v1/responses';
type Chosen = { file: File; check: FileCheck | null; share: number };

/** Lets the user choose a file, preview the batch, and submit it. The file is checked here before it is uploaded. */
export function NewBatch() {
  const navigate = useNavigate();
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [options, setOptions] = useState({ virtualKey: '', config: '', window: '24h', note: '', maxCost: '' });
  const [sent, setSent] = useState<number | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [found, setFound] = useState<DryRun | null>(null);
  const submission = useRef('');

  const choose = async (file: File): Promise<void> => {
    setError(null);
    submission.current = crypto.randomUUID();
    setFound(null);
    setChosen({ file, check: null, share: 0 });
    const check = await checkLines(file, (share) => setChosen({ file, check: null, share }));
    setChosen({ file, check, share: 1 });
  };
  /** Uploads the file, once for both buttons, and returns the body that names it. */
  const uploaded = async ({ file, check }: Chosen) => {
    // With the same key, the server already has the file and only compares it.
    const { id: fileId } = await upload(file, `${submission.current}-file`, setSent);
    const { virtualKey, config, window, note, maxCost } = options;
    const target = {
      ...(virtualKey === '' ? {} : { virtual_key: virtualKey }),
      ...(config === '' ? {} : { config }),
      ...(maxCost === '' ? {} : { max_cost: maxCost }),
    };
    return {
      input_file_id: fileId,
      endpoint: (check?.endpoint ?? '/v1/chat/completions') as Endpoint,
      completion_window: window as '24h' | 'immediate',
      ...(note === '' ? {} : { metadata: { note } }),
      ...(Object.keys(target).length === 0 ? {} : { gateway_options: target }),
    };
  };
  const send = async (act: () => Promise<void>): Promise<void> => {
    setError(null);
    setSent(0);
    try {
      await act();
    } catch (caught) {
      setError(caught);
    } finally {
      setSent(null);
    }
  };
  const submit = (from: Chosen): Promise<void> =>
    send(async () => {
      const body = await uploaded(from);
      const headers = { 'idempotency-key': `${submission.current}-batch` };
      const batch = await answerOf(api.POST('/v1/batches', { headers, body }));
      await navigate({ to: '/batches/$id', params: { id: batch.id } });
    });
  const estimate = (from: Chosen): Promise<void> =>
    send(async () => setFound(await answerOf(api.POST('/v1/batches/dry-run', { body: await uploaded(from) }))));
  const isReady = chosen?.check?.problemCount === 0 && sent === null;
  return (
    <div className="stack">
      <PageHead
        title="New batch"
        text="The file is first checked in your browser. It is not uploaded until you request an estimate or submit."
      />
      <FileChoice onFile={(file) => void choose(file)} />
      {chosen === null ? null : <FileReport chosen={chosen} />}
      {chosen?.check === undefined || chosen?.check === null ? null : (
        <Card title="Target and options">
          <Options
            value={options}
            onChange={(changed) => {
              setOptions(changed);
              setFound(null);
            }}
          />
        </Card>
      )}
      {found === null ? null : <Estimate found={found} />}
      {error === null ? null : <ErrorNote error={error} />}
      {chosen === null ? null : (
        <div className="row">
          <button type="button" className="primary" disabled={!isReady} onClick={() => void submit(chosen)}>
            {sent === null ? `Submit ${count(chosen.check?.lines ?? 0)} lines` : `Sending, ${percent(sent, 1)}`}
          </button>
          <button type="button" disabled={!isReady} onClick={() => void estimate(chosen)}>
            Estimate cost
          </button>
          {(chosen.check?.problemCount ?? 0) > 0 ? (
            <span className="muted">Fix the file, then select it again.</span>
          ) : null}
        </div>
      )}
    </div>
  );
}

/** The server's estimate for a batch that was not created. */
function Estimate({ found }: { found: DryRun }) {
  const dollars = (member: 'cost_of_input_usd' | 'cost_max_usd', unknown: string): string => {
    if (found[member] === null) return unknown;
    const simulated = found.models.filter(({ model }) => isOfSimulator(model)).map((row) => Number(row[member]) * 100);
    return moneyOf(
      Number(found[member]) * 100,
      simulated.reduce((sum, cents) => sum + cents, 0),
    );
  };
  return (
    <Card
      title="Estimated cost"
      aside={<Badge tone={found.valid ? 'good' : 'bad'}>{found.valid ? 'would run' : 'would fail'}</Badge>}
    >
      <div className="tiles">
        <Tile label="Input" value={dollars('cost_of_input_usd', 'unknown')} note="estimated from the prompts" />
        <Tile
          label="Maximum"
          value={dollars('cost_max_usd', 'no limit')}
          note={
            found.cost_max_usd === null ? 'some lines do not limit output tokens' : 'with the longest possible answers'
          }
        />
      </div>
      <DataTable
        label="Models"
        rows={found.models}
        keyOf={(row) => row.model ?? ''}
        columns={[
          { head: 'Model', isLong: true, cell: (row) => <code>{row.model ?? 'set by a prompt'}</code> },
          { head: 'Lines', isNumber: true, cell: (row) => count(row.lines) },
          { head: 'Input tokens', isNumber: true, cell: (row) => count(row.input_tokens) },
          {
            head: 'Max. output tokens',
            isNumber: true,
            cell: (row) => (row.unbounded_lines > 0 ? 'no maximum' : count(row.output_tokens_max)),
          },
          { head: 'Target', isLong: true, cell: (row) => row.problem?.message ?? row.target.join('; ') },
        ]}
      />
      {found.limits.map(({ limit, label, left, needed, measure, suffices }) => (
        <p key={limit} className={suffices === false ? 'note-box warn' : 'muted'}>
          The budget {label}{' '}
          {suffices === null ? 'may not be sufficient' : suffices ? 'is sufficient' : 'is not sufficient'}:{' '}
          {amountOf(measure, left)} left
          {needed === null ? '' : `, up to ${amountOf(measure, needed)} needed`}.
        </p>
      ))}
      {(found.errors?.data ?? []).map(({ line, message }) => (
        <p key={`${line} ${message}`} className="note-box bad">
          {line === null ? '' : `Line ${count(line)}: `}
          {message}
        </p>
      ))}
    </Card>
  );
}

const amountOf = (measure: string, amount: string): string =>
  measure === 'cost' ? usd(amount) : `${count(Number(amount))} tokens`;

function FileChoice({ onFile }: { onFile: (file: File) => void }) {
  const [isOver, setOver] = useState(false);
  const [lines, setLines] = useState('1000');
  const input = useRef<HTMLInputElement>(null);
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    const [file] = event.dataTransfer.files;
    if (file !== undefined) onFile(file);
  };
  return (
    <div
      className="drop"
      data-over={isOver}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
    >
      <strong>Drop a JSONL file here</strong>
      <p className="muted">
        One request per line:{' '}
        <code>{'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}'}</code>
      </p>
      <div className="row">
        <button type="button" onClick={() => input.current?.click()}>
          Choose a file
        </button>
        <input
          ref={input}
          type="file"
          className="hidden"
          aria-label="Input file"
          accept=".jsonl,.ndjson,.txt,application/jsonl"
          onChange={(event) => {
            const [file] = event.target.files ?? [];
            if (file !== undefined) onFile(file);
          }}
        />
        <span className="muted">or</span>
        <label className="row">
          <span className="hidden">Lines in the sample</span>
          <input
            type="number"
            min={1}
            max={200_000}
            value={lines}
            onChange={(event) => setLines(event.target.value)}
            style={{ width: 96 }}
          />
        </label>
        <button type="button" onClick={() => onFile(sampleFile(Number(lines)))}>
          Generate a sample for the simulator
        </button>
      </div>
    </div>
  );
}

/** Questions for the simulator, which answers like a provider at a simulated cost. */
function sampleFile(wanted: number): File {
  const lines = Math.min(200_000, Math.max(1, Math.round(wanted) || 1));
  const text = Array.from({ length: lines }, (_, index) =>
    JSON.stringify({
      custom_id: `question-${index + 1}`,
      method: 'POST',
      url: '/v1/chat/completions',
      body: {
        model: '@simulator/sim-small',
        messages: [{ role: 'user', content: `Name one fact about the number ${index + 1}.` }],
        max_tokens: 32,
      },
    }),
  );
  return new File([`${text.join('\n')}\n`], `sample-${lines}.jsonl`, { type: 'application/jsonl' });
}

function FileReport({ chosen: { file, check, share } }: { chosen: Chosen }) {
  if (check === null) {
    return (
      <Card title={file.name}>
        <p role="status">
          Checking {bytes(file.size)}: {percent(share, 1)}
        </p>
      </Card>
    );
  }
  return (
    <Card
      title={file.name}
      aside={
        check.problemCount === 0 ? (
          <Badge tone="good">ready</Badge>
        ) : (
          <Badge tone="bad">{count(check.problemCount)} problems</Badge>
        )
      }
    >
      <Facts
        rows={[
          ['Size', bytes(file.size)],
          ['Lines', count(check.lines)],
          ['Endpoint', <code key="endpoint">{check.endpoint ?? '–'}</code>],
          ['Models', check.models.length === 0 ? 'none' : check.models.join(', ')],
        ]}
      />
      {check.problems.length === 0 ? null : (
        <ul>
          {check.problems.map(({ line, text }) => (
            <li key={`${line} ${text}`}>
              Line {count(line)} {text}
            </li>
          ))}
          {check.problemCount > check.problems.length ? (
            <li>and {count(check.problemCount - check.problems.length)} more</li>
          ) : null}
        </ul>
      )}
    </Card>
  );
}

type OptionValues = { virtualKey: string; config: string; window: string; note: string; maxCost: string };

function Options({ value, onChange }: { value: OptionValues; onChange: (value: OptionValues) => void }) {
  const keys = useQuery({
    queryKey: ['virtual_key', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/virtual-keys', { params: { query } }))),
    retry: false,
  });
  const configs = useQuery({
    queryKey: ['config', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/configs', { params: { query } }))),
    retry: false,
  });
  return (
    <div className="filters">
      <label>
        Virtual key
        <select value={value.virtualKey} onChange={(event) => onChange({ ...value, virtualKey: event.target.value })}>
          <option value="">from the model of each line</option>
          {(keys.data?.data ?? []).map(({ slug, name }) => (
            <option key={slug} value={slug}>
              {name} ({slug})
            </option>
          ))}
        </select>
      </label>
      <label>
        Config
        <select value={value.config} onChange={(event) => onChange({ ...value, config: event.target.value })}>
          <option value="">none</option>
          {(configs.data?.data ?? []).map(({ slug, name }) => (
            <option key={slug} value={slug ?? ''}>
              {name} ({slug})
            </option>
          ))}
        </select>
      </label>
      <label>
        When
        <select value={value.window} onChange={(event) => onChange({ ...value, window: event.target.value })}>
          <option value="24h">within 24 hours</option>
          <option value="immediate">as soon as possible, before other batches</option>
        </select>
      </label>
      <label>
        Note
        <input
          value={value.note}
          maxLength={128}
          onChange={(event) => onChange({ ...value, note: event.target.value })}
          placeholder="stored as metadata"
        />
      </label>
      <label>
        Maximum cost in US dollars
        <input
          value={value.maxCost}
          inputMode="decimal"
          onChange={(event) => onChange({ ...value, maxCost: event.target.value })}
          placeholder="pauses the batch"
        />
      </label>
    </div>
  );
}

/**
 * Uploads a file for a batch; `onShare` gets the fraction that was sent. Uses XMLHttpRequest, because fetch does not report
 * it.
 */
function upload(file: File, idempotencyKey: string, onShare: (share: number) => void): Promise<FileObject> {
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', file);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('POST', `${serverPath}/v1/files`);
    request.setRequestHeader('x-sluice-console', '1');
    request.setRequestHeader('idempotency-key', idempotencyKey);
    request.responseType = 'json';
    request.upload.onprogress = ({ loaded, total }) => onShare(total === 0 ? 1 : loaded / total);
    request.onload = () => {
      const { status, response } = request;
      if (status === 200) return resolve(response as FileObject);
      const headers = { 'x-request-id': request.getResponseHeader('x-request-id') ?? '' };
      reject(toApiError(new Response(null, { status: Math.max(200, status), headers }), response));
    };
    request.onerror = () =>
      reject(new Error('The upload was interrupted. Submit again; this does not create a second batch.'));
    request.send(form);
  });
}
