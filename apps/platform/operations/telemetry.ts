import type { Logger } from '#libs/kernel/logging/logger.ts';
import { w3cTraceId } from '#libs/kernel/trace-ids.ts';
import { version } from '#libs/kernel/version.ts';
import {
  toCallSpans,
  getCallTrace,
  w3cTrace,
  type EndedSpan,
  type SpanTrace,
} from '#libs/request-log/record/call-spans.ts';
import type { LoggedCall } from '#libs/request-log/record/logged-call.ts';
import { getFailureCode } from '#libs/request-log/row/call-outcome.ts';
import type { RequestLogEntry } from '#libs/request-log/row/log-entry.ts';

/** Exports calls and jobs to OpenTelemetry. */
export type Telemetry = {
  /**
   * Whether spans of this trace are recorded. `isParentSampled`: the flag in the caller's `traceparent`; null: none was
   * sent.
   */
  isSampled: (traceId: string, isParentSampled: boolean | null) => boolean;
  /**
   * Hands over the spans and measurements of a call that has ended. `jobSpanId`: the span of the job that made it, in the same
   * trace. Never throws and never waits.
   */
  record: (logged: LoggedCall, entry: RequestLogEntry, jobSpanId?: string) => void;
  /** Hands over the span of a job that has ended. Never throws and never waits. */
  recordJob: (span: EndedSpan, trace: SpanTrace) => void;
  /** Exports the remaining data, within two seconds. */
  stop: () => Promise<void>;
};

/** The OpenTelemetry variables that this file reads. Its exporters read the others themselves. */
export type TelemetryConfig = {
  OTEL_SDK_DISABLED?: string | undefined;
  OTEL_EXPORTER_OTLP_ENDPOINT?: string | undefined;
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT?: string | undefined;
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT?: string | undefined;
  OTEL_TRACES_EXPORTER?: string | undefined;
  OTEL_METRICS_EXPORTER?: string | undefined;
  OTEL_TRACES_SAMPLER: string;
  OTEL_TRACES_SAMPLER_ARG?: number | undefined;
  OTEL_SERVICE_NAME?: string | undefined;
};

/** The maximum of spans that wait for their export. Further ones are dropped, because no call waits for a collector. */
const waitingSpansMax = 8_192;
const exportTimeoutMs = 10_000;
const stopMs = 2_000;
const complainEveryMs = 60_000;

/**
 * Starts the exporters that the environment configures, or returns null, which is the default and loads no part of
 * OpenTelemetry. Spans are made from calls that have ended, and do not delay them.
 */
export async function createTelemetry(
  config: TelemetryConfig,
  { app, logger }: { app: string; logger: Logger },
): Promise<Telemetry | null> {
  const { OTEL_EXPORTER_OTLP_ENDPOINT: endpoint } = config;
  if (config.OTEL_SDK_DISABLED === 'true') return null;
  // A base address gets the path of each signal; an address for one signal is used unchanged.
  const of = (path: string): string | null =>
    endpoint === undefined ? null : `${endpoint.replace(/\/$/, '')}/${path}`;
  const tracesUrl = config.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? of('v1/traces');
  const metricsUrl = config.OTEL_EXPORTER_OTLP_METRICS_ENDPOINT ?? of('v1/metrics');
  const hasTraces = config.OTEL_TRACES_EXPORTER !== 'none' && tracesUrl !== null;
  const hasMetrics = config.OTEL_METRICS_EXPORTER !== 'none' && metricsUrl !== null;
  if (!hasTraces && !hasMetrics) return null;
  const [api, { detectResources, envDetector, resourceFromAttributes }] = await Promise.all([
    import('@opentelemetry/api'),
    import('@opentelemetry/resources'),
  ]);
  const mayComplain = everyMinute();
  complainTo(api, logger);
  const resource = resourceFromAttributes({
    'service.name': config.OTEL_SERVICE_NAME ?? `sluice-${app}`,
    'service.version': version,
  }).merge(detectResources({ detectors: [envDetector] }));
  const traces = hasTraces ? await startTraces(api, resource, tracesUrl, config) : null;
  const metrics = hasMetrics ? await startMetrics(resource, metricsUrl) : null;
  const safely = (what: string, tell: () => void): void => {
    try {
      tell();
    } catch (error) {
      if (mayComplain()) logger.warn({ err: error }, `OpenTelemetry cannot record ${what}`);
    }
  };
  return {
    isSampled: (traceId, isParentSampled) => traces?.isSampled(w3cTraceId(traceId), isParentSampled) === true,
    record: (logged, entry, jobSpanId) =>
      safely('a call', () => {
        traces?.record(logged, entry, jobSpanId);
        metrics?.record(entry);
      }),
    recordJob: (span, trace) => safely('a job', () => traces?.recordJob(span, trace)),
    async stop() {
      const stopped = Promise.allSettled([traces?.stop(), metrics?.stop()]);
      await Promise.race([stopped, new Promise((resolve) => setTimeout(resolve, stopMs).unref())]);
    },
  };
}

type Api = typeof import('@opentelemetry/api');
type Resource = import('@opentelemetry/resources').Resource;

/** True at most once a minute. */
function everyMinute(): () => boolean {
  let lastMs = Number.NEGATIVE_INFINITY;
  return () => {
    if (performance.now() - lastMs < complainEveryMs) return false;
    lastMs = performance.now();
    return true;
  };
}

/** Logs problems of the exporters, at most once a minute. */
function complainTo({ diag, DiagLogLevel }: Api, logger: Logger): void {
  const mayComplain = everyMinute();
  const complain = (message: string): void => {
    if (!mayComplain()) return;
    logger.warn({ problem: message.slice(0, 500) }, 'OpenTelemetry cannot export; calls continue without it');
  };
  const quiet = (): void => {};
  diag.setLogger({ error: complain, warn: complain, info: quiet, debug: quiet, verbose: quiet }, DiagLogLevel.WARN);
}

async function startTraces(api: Api, resource: Resource, url: string, config: TelemetryConfig) {
  const [sdk, { OTLPTraceExporter }] = await Promise.all([
    import('@opentelemetry/sdk-trace'),
    import('@opentelemetry/exporter-trace-otlp-http'),
  ]);
  const sampler = samplerOf(sdk, config);
  // IDs are derived from those of the call, so that its span can be announced to the provider before it has ended.
  let ids = { traceId: '', spanId: '' };
  const provider = new sdk.TracerProvider({
    resource,
    sampler,
    idGenerator: { generateTraceId: () => ids.traceId, generateSpanId: () => ids.spanId },
    spanProcessors: [
      new sdk.BatchSpanProcessor({
        exporter: new OTLPTraceExporter({ url, timeoutMillis: exportTimeoutMs }),
        maxQueueSize: waitingSpansMax,
        exportTimeoutMillis: exportTimeoutMs,
      }),
    ],
  });
  const tracer = provider.getTracer('sluice', version);
  const { ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, TraceFlags } = api;
  const kinds = {
    server: SpanKind.SERVER,
    client: SpanKind.CLIENT,
    internal: SpanKind.INTERNAL,
    consumer: SpanKind.CONSUMER,
  };
  const under = (traceId: string, spanId: string, isSampled: boolean) =>
    trace.setSpanContext(ROOT_CONTEXT, {
      traceId,
      spanId,
      traceFlags: isSampled ? TraceFlags.SAMPLED : TraceFlags.NONE,
      isRemote: true,
    });
  const add = (traceId: string, span: EndedSpan, context: ReturnType<typeof under>): void => {
    ids = { traceId, spanId: span.spanId };
    const { kind, startMs, attributes } = span;
    const made = tracer.startSpan(span.name, { kind: kinds[kind], startTime: startMs, attributes }, context);
    if (span.error !== null) made.setStatus({ code: SpanStatusCode.ERROR, message: span.error });
    made.end(Math.max(startMs, span.endMs));
  };
  const samples = (traceId: string, context: ReturnType<typeof under>): boolean => {
    const { decision } = sampler.shouldSample(context, traceId, 'call', SpanKind.SERVER, {}, []);
    return decision === sdk.SamplingDecision.RECORD_AND_SAMPLED;
  };
  return {
    isSampled(traceId: string, isParentSampled: boolean | null): boolean {
      return samples(
        traceId,
        isParentSampled === null ? ROOT_CONTEXT : under(traceId, '0000000000000001', isParentSampled),
      );
    },
    record(logged: LoggedCall, entry: RequestLogEntry, jobSpanId?: string): void {
      const { traceId, parentSpanId } = getCallTrace(logged);
      const isParentSampled = logged.trace.isSampled ?? true;
      const context = parentSpanId === null ? ROOT_CONTEXT : under(traceId, parentSpanId, isParentSampled);
      // If there are many calls, most are not sampled, and making their spans would cost as much as sending them.
      if (!samples(traceId, context)) return;
      const { call, attempts } = toCallSpans(logged, entry);
      // A job's span is sampled if its calls are, because both decisions use the same trace and caller.
      add(traceId, call, jobSpanId === undefined ? context : under(traceId, jobSpanId, true));
      for (const attempt of attempts) add(traceId, attempt, under(traceId, call.spanId, true));
    },
    recordJob(span: EndedSpan, trace: SpanTrace): void {
      const { traceId, parentSpanId } = w3cTrace(trace);
      const context = parentSpanId === null ? ROOT_CONTEXT : under(traceId, parentSpanId, true);
      if (samples(traceId, context)) add(traceId, span, context);
    },
    stop: () => provider.shutdown(),
  };
}

/** OTEL_TRACES_SAMPLER, with the names of the specification. */
function samplerOf(
  sdk: typeof import('@opentelemetry/sdk-trace'),
  { OTEL_TRACES_SAMPLER: name, OTEL_TRACES_SAMPLER_ARG: share = 1 }: TelemetryConfig,
) {
  const [kind, isParentBased] = name.startsWith('parentbased_') ? [name.slice(12), true] : [name, false];
  const root =
    kind === 'always_off'
      ? new sdk.AlwaysOffSampler()
      : kind === 'traceidratio'
        ? new sdk.TraceIdRatioBasedSampler(share)
        : new sdk.AlwaysOnSampler();
  return isParentBased ? new sdk.ParentBasedSampler({ root }) : root;
}

async function startMetrics(resource: Resource, url: string) {
  const [{ MeterProvider, PeriodicExportingMetricReader }, { OTLPMetricExporter }, { providerName }] =
    await Promise.all([
      import('@opentelemetry/sdk-metrics'),
      import('@opentelemetry/exporter-metrics-otlp-http'),
      import('#libs/request-log/record/call-spans.ts'),
    ]);
  const exporter = new OTLPMetricExporter({ url, timeoutMillis: exportTimeoutMs });
  // The SDK bounds how many combinations of attributes an instrument has, because callers choose the names of models.
  const reader = new PeriodicExportingMetricReader({ exporter, exportTimeoutMillis: exportTimeoutMs });
  const provider = new MeterProvider({ resource, readers: [reader] });
  const meter = provider.getMeter('sluice', version);
  const duration = meter.createHistogram('gen_ai.client.operation.duration', {
    unit: 's',
    description: 'GenAI operation duration.',
    advice: {
      explicitBucketBoundaries: [
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
      ],
    },
  });
  const tokens = meter.createHistogram('gen_ai.client.token.usage', {
    unit: '{token}',
    description: 'Number of input and output tokens used.',
    advice: {
      explicitBucketBoundaries: [
        1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216, 67_108_864,
      ],
    },
  });
  return {
    record(entry: RequestLogEntry): void {
      const error = getFailureCode(entry.status, entry.error_code);
      const attributes = {
        'gen_ai.operation.name': entry.operation === 'completions' ? 'text_completion' : entry.operation,
        'gen_ai.provider.name': entry.provider === null ? 'unknown' : providerName(entry.provider),
        // A model that no provider has answered with can be any text of the caller.
        ...(entry.response_model === null ? {} : { 'gen_ai.response.model': entry.response_model }),
        'sluice.kind': entry.kind,
      };
      duration.record(entry.duration_ms / 1_000, error === null ? attributes : { ...attributes, 'error.type': error });
      if (entry.input_tokens !== null)
        tokens.record(entry.input_tokens, { ...attributes, 'gen_ai.token.type': 'input' });
      if (entry.output_tokens !== null) {
        tokens.record(entry.output_tokens, { ...attributes, 'gen_ai.token.type': 'output' });
      }
    },
    stop: () => provider.shutdown(),
  };
}
