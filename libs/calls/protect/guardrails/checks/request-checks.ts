import type { GuardrailCheck } from '#libs/contracts/configs/guardrail-checks.ts';
import { otherModelsIn } from '#libs/calls/allowed-models.ts';
import { isModelNamed } from '#libs/prices/model-names.ts';
import type { GuardrailSubject } from '../texts/subject.ts';
import { holds, type Finding } from './text-checks.ts';

export type RequestCheck = Extract<
  GuardrailCheck,
  { name: 'modelWhitelist' | 'requiredMetadataKeys' | 'allowedRequestTypes' }
>;

/** The checks of a call that do not read its texts. */
export function checkRequest(check: RequestCheck, subject: GuardrailSubject): Finding {
  const { model, publicModel, metadata, operation, request } = subject;
  switch (check.name) {
    case 'modelWhitelist': {
      const { models, not } = check.parameters;
      const { names, chooses } = otherModelsIn(request);
      const data = { model, not };
      if (chooses !== null)
        return { verdict: false, data: { ...data, explanation: `'${chooses}' lets the provider choose a model.` } };
      const passes = (name: string): boolean =>
        not ? !models.some((excluded) => isModelNamed(name, excluded)) : models.includes(name);
      // A list of allowed models can name the public model instead of that of the provider. An excluded model is excluded
      // under both names.
      const own = publicModel === undefined ? [model ?? ''] : [model ?? '', publicModel];
      const isPassing = not ? own.every(passes) : own.some(passes);
      return { verdict: isPassing && names.every(passes), data };
    }
    case 'requiredMetadataKeys': {
      const { metadataKeys, operator } = check.parameters;
      const missing = metadataKeys.filter((key) => !Object.hasOwn(metadata ?? {}, key));
      const present = metadataKeys.length - missing.length;
      return { verdict: holds(operator, present, metadataKeys.length), data: { operator, missing } };
    }
    case 'allowedRequestTypes': {
      const { allowedTypes, blockedTypes, not } = check.parameters;
      const allowed = allowedTypes === undefined || allowedTypes.length === 0 || allowedTypes.includes(operation);
      const verdict = allowed && !(blockedTypes ?? []).includes(operation);
      return { verdict: verdict !== not, data: { requestType: operation, not } };
    }
  }
}
