import { configLimits, ConfigInput, ConfigNode, type Config } from '#libs/contracts/configs/config.ts';
import { refuseProtoMembers, tryParse } from '#libs/contracts/parse.ts';
import type { GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import { prepareGuardrails } from '#libs/calls/protect/guardrails/guardrails.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { compileConfig } from '#libs/calls/plan/compile-config.ts';
import type { Leaf, Plan, PublicModelUse } from '#libs/calls/plan/plan.ts';
import { unknownProvider } from '../not-found.ts';
import { containsSecrets } from './config-secrets.ts';
import type { PlanCache } from './plan-cache.ts';
import { parseCustomHost } from '../custom-host.ts';
import { assertSendable } from '../provider-settings.ts';

/** Throws GatewayError for a URL that could never be called (libs/calls/upstream/egress/egress.ts `check`). */
type CheckDestination = (url: URL) => void;

/**
 * Checks a config and makes it ready to run. Everything that can be known without a call is checked for every target, even
 * for one that is possibly never used: members, rules, providers, hosts and their destinations. `param` names the config in
 * messages. Throws invalid_request.
 */
export function readConfig(
  value: unknown,
  param: string,
  checkDestination: CheckDestination,
): { config: Config; plan: Plan } {
  const result = tryParse(ConfigInput, value, param);
  if (!result.ok) {
    const { code, message, param: at } = result.problem;
    throw new GatewayError('invalid_request', code, message, { param: at });
  }
  refuseProtoMembers(value, param);
  const plan = compileConfig(result.value);
  for (const leaf of plan.leaves) checkLeaf(leaf, atLeaf(leaf, param), checkDestination);
  return { config: result.value, plan };
}

/** The location of a leaf in the caller's request: `x-gateway-config.targets[0]`. */
export const atLeaf = ({ path }: Pick<Leaf, 'path'>, param: string): string => param + path.slice('config'.length);

function checkLeaf(leaf: Leaf, at: string, checkDestination: CheckDestination): void {
  const { credentials, inputGuardrails, outputGuardrails } = leaf;
  checkGuardrails(inputGuardrails, `${at}.input_guardrails`, checkDestination);
  checkGuardrails(outputGuardrails, `${at}.output_guardrails`, checkDestination);
  const { provider, customHost, apiKey, secrets } = credentials;
  if (provider !== null && !findProvider(provider)) throw unknownProvider(provider, `${at}.provider`);
  if (customHost !== null) {
    const param = `${at}.custom_host`;
    try {
      checkDestination(parseCustomHost(customHost, param));
    } catch (error) {
      if (!(error instanceof GatewayError) || error.param !== null) throw error;
      throw new GatewayError(error.kind, error.code, error.message, { param });
    }
  }
  if (apiKey !== null) assertSendable('api_key', apiKey.reveal(), `${at}.api_key`);
  for (const [name, secret] of Object.entries(secrets)) assertSendable(name, secret.reveal(), `${at}.${name}`);
}

function checkGuardrails(guardrails: readonly GuardrailEntry[], param: string, check: CheckDestination): void {
  try {
    prepareGuardrails({ check }, guardrails);
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    throw new GatewayError(error.kind, error.code, error.message, { param, cause: error });
  }
}

/**
 * The plan of a config that was checked when it was stored; null when this release cannot read it. Destinations are
 * checked for each call. `publicModel`: the public model that the config stands for.
 */
export function compileStoredConfig(
  document: Record<string, unknown>,
  publicModel: PublicModelUse | null = null,
): Plan | null {
  const result = ConfigNode.safeParse(document);
  return result.success ? compileConfig(result.data, publicModel) : null;
}

/** A config's JSON text as a value. Throws invalid_request. */
export function parseConfigText(text: string, param: string): unknown {
  if (text.length > configLimits.textBytesMax) {
    throw refused(param, `it is longer than ${configLimits.textBytesMax} bytes.`);
  }
  try {
    return JSON.parse(text);
  } catch {
    throw refused(param, 'it is not valid JSON.');
  }
}

const refused = (param: string, what: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${what}`, { param });

export type ReadConfigDeps = { checkDestination: CheckDestination; plans: PlanCache };

/**
 * Returns the plan of a config that came with a call as text. The plan is cached, because callers send the same few
 * texts thousands of times. A config that contains a credential is never cached, so that no key stays in memory after
 * its call.
 */
export function readInlineConfig({ checkDestination, plans }: ReadConfigDeps, text: string, param: string): Plan {
  const cacheKey = `${param} ${text}`;
  const known = plans.find(cacheKey);
  if (known) return known;
  const value = parseConfigText(text, param);
  const { plan } = readConfig(value, param, checkDestination);
  if (!containsSecrets(value as Record<string, unknown>)) plans.keep(cacheKey, text, plan);
  return plan;
}
